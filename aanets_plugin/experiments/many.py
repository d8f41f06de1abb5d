"""do_all: many planned runs, with the options that say where and how many at a time."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.estimate import seconds_per_sample, work_of
from aanets_plugin.experiments.plan import Plan
from aanets_plugin.experiments.progress import Progress, describe, duration
from aanets_plugin.experiments.queue import Job, Outcome, Queue
from aanets_plugin.experiments.workers import Launcher, Submitit, Workers, environments


def add_many_options(group: Any) -> None:
    """The options of commands that do many runs."""
    add = group.add_argument
    add("--jobs", type=int, metavar="N", help="runs at a time; default: 1, with Slurm all")
    add(
        "--threads",
        type=int,
        metavar="N",
        help="threads of each run; default: 1, beside GPUs the cores by the jobs. With another "
        "number of threads results differ by rounding",
    )
    add("--device", choices=("auto", "cpu"), default="auto", help="default: GPUs if there are any")
    add(
        "--launcher",
        choices=("local", "slurm"),
        default="local",
        help="where runs are done: on this machine, or each as a job of a Slurm cluster, by "
        "submitit; default: %(default)s",
    )
    add(
        "--slurm",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="options of submitit, such as slurm_partition=gpu timeout_min=600 gpus_per_node=1",
    )
    add(
        "--dry-run",
        action="store_true",
        help="list the runs with an estimate of their time from one measured batch, and end",
    )


def launcher_from(args: argparse.Namespace, output: Path) -> tuple[Launcher, int | None]:
    """The launcher that the options ask for, and how many runs it does at a time (None: all)."""
    for name in ("jobs", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name} {value}: must be ≥ 1.")
    if args.launcher == "slurm":
        return Submitit(output / "slurm", slurm_options(args.slurm)), args.jobs
    if args.slurm:
        raise ConfigurationError(
            f"--slurm {' '.join(args.slurm)}: needs --launcher slurm. Add it, or leave out --slurm."
        )
    jobs = args.jobs or 1
    gpus = 0 if args.device == "cpu" else torch.cuda.device_count()
    return Workers(environments(jobs, args.threads, gpus)), jobs


def slurm_options(words: Sequence[str]) -> dict[str, Any]:
    """Options of submitit from NAME=VALUE.

    Examples:
        >>> slurm_options(["slurm_partition=gpu", "timeout_min=60"])
        {'slurm_partition': 'gpu', 'timeout_min': 60}
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"--slurm {word}: must be NAME=VALUE.")
        options[name] = int(value) if value.isdecimal() else value
    return options


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
    launcher, at_once = launcher_from(args, output)
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
    jobs = [_job(plan, output) for plan in plans]
    missing = [job for job in jobs if not job.finished]
    finished = [job for job in jobs if job.finished]
    print(f"{len(missing)} of {len(jobs)} runs are left to do in {output}.", flush=True)

    class Watched(Progress):
        def ended(self, job: Job, problem: str) -> None:
            super().ended(job, problem)
            after()

    count = len(missing) if at_once is None else at_once
    queue = Queue(missing, launcher, at_once=count, others=finished, watch=Watched())
    try:
        outcome = queue.run()
    except KeyboardInterrupt:
        print("Stopped. Start the same command again to continue.", file=sys.stderr)
        raise SystemExit(130) from None
    for name, problem in outcome.failed.items():
        print(f"{name} failed: {problem} (see {output / name / 'log.txt'})", file=sys.stderr)
    return outcome


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
