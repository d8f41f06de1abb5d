"""do_all: many planned runs, as the options of a command say."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aanets_plugin.experiments.estimate import seconds_per_sample, work_of
from aanets_plugin.experiments.launch import add_launch_options, do_jobs, launcher_from
from aanets_plugin.experiments.plan import Plan
from aanets_plugin.experiments.progress import describe, duration
from aanets_plugin.experiments.queue import Job, Outcome
from aanets_plugin.experiments.workers import Launcher


def add_many_options(group: Any) -> None:
    """The options of commands that do many runs."""
    add_launch_options(group, alone="1")
    add = group.add_argument
    add("--device", choices=("auto", "cpu"), default="auto", help="default: GPUs if there are any")
    add(
        "--dry-run",
        action="store_true",
        help="list the runs with an estimate of their time from one measured batch, and end",
    )


def do_as_asked(
    args: argparse.Namespace,
    plans: Sequence[Plan],
    output: Path,
    *,
    check: Callable[[], object],
    after: Callable[[], object] = lambda: None,
) -> Outcome:
    """Do the runs as the options of `add_many_options` say; with --dry-run, list them and end.

    `check` is called before the first run starts, `after` whenever one has ended.
    """
    if args.jobs is None and args.launcher == "local":
        args.jobs = 1
    found = launcher_from(args, output)
    assert found is not None
    launcher, at_once = found
    if args.dry_run:
        print(list_runs(plans, output, at_once, args.threads))
        raise SystemExit(0)
    check()
    return do_all(plans, output, launcher, at_once, after=after)


def do_all(
    plans: Sequence[Plan],
    output: Path,
    launcher: Launcher,
    at_once: int | None,
    *,
    after: Callable[[], object] = lambda: None,
) -> Outcome:
    """Do the runs that are not finished in the folder `output`. `after` is called after each."""
    try:
        return do_jobs(
            [_job(plan, output) for plan in plans], output, launcher, at_once, after=after
        )
    except KeyboardInterrupt:
        print("Stopped. Start the same command again to continue.", file=sys.stderr)
        raise SystemExit(130) from None


def _job(plan: Plan, output: Path, sample: float | None = None) -> Job:
    return replace(plan.job(output), work=work_of(plan, sample))


def list_runs(plans: Sequence[Plan], output: Path, at_once: int | None, threads: int | None) -> str:
    """The runs as a list, with an estimate of their time from one measured batch of each kind."""
    torch.set_num_threads(threads or 1)
    measured: dict[object, float] = {}
    lines, total = [], 0.0
    trained = set()
    for plan in plans:
        kind = (plan.settings.method, plan.settings.aanets, repr(plan.settings.backbone))
        if kind not in measured:
            measured[kind] = seconds_per_sample(plan)
        job = _job(plan, output, measured[kind])
        if job.finished:
            lines.append(f"{job.name:44} finished")
            continue
        first, *later = job.work
        is_shared = job.first_phase in trained
        trained.add(job.first_phase)
        seconds = sum(later) + (0 if is_shared else first)
        total += seconds
        state = describe(job) if (output / plan.name).exists() else "waits"
        lines.append(f"{job.name:44} about {duration(seconds):>7}  {state}")
    jobs = at_once or len(plans)
    cores = min(jobs, os.cpu_count() or 1) if not torch.cuda.is_available() else jobs
    lines.append(
        f"{len(plans)} runs, about {duration(total)} one after another, {duration(total / cores)} "
        f"with {jobs} at a time; estimated from one batch of each kind, {len(measured)} measured."
    )
    return "\n".join(lines)
