"""Where and how many at a time runs are done: the options, the launcher and the queue of jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.progress import Progress
from aanets_plugin.experiments.queue import Job, Outcome, Queue
from aanets_plugin.experiments.workers import Launcher, Submitit, Workers, environments


def add_launch_options(group: Any, *, alone: str) -> None:
    """Add the options that say where runs are done. `alone` is what happens without them."""
    add = group.add_argument
    add("--jobs", type=int, metavar="N", help=f"runs at a time; default: {alone}, with Slurm all")
    add(
        "--threads",
        type=int,
        metavar="N",
        help="threads of each run; default of jobs: 1, beside GPUs the cores by the jobs. With "
        "another number of threads results differ by rounding",
    )
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


def launcher_from(args: argparse.Namespace, output: Path) -> tuple[Launcher, int | None] | None:
    """The launcher that the options ask for, and how many runs it does at a time (None: all).

    None if they ask for none.
    """
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
    if args.jobs is None:
        return None
    if args.device.startswith("cuda:"):
        raise ConfigurationError(
            f"--device {args.device}: does not go with --jobs, which shares the GPUs among the "
            f"runs. Set CUDA_VISIBLE_DEVICES to choose GPUs, and leave out --device."
        )
    gpus = 0 if args.device == "cpu" else torch.cuda.device_count()
    return Workers(environments(args.jobs, args.threads, gpus)), args.jobs


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


def do_jobs(
    jobs: Sequence[Job],
    output: Path,
    launcher: Launcher,
    at_once: int | None,
    *,
    after: Callable[[], object] = lambda: None,
) -> Outcome:
    """Do the jobs that are not finished in the folder `output`. `after` is called after each.

    Says what failed. A job that fails does not stop the others.
    """
    missing = [job for job in jobs if not job.finished]
    finished = [job for job in jobs if job.finished]
    print(f"{len(missing)} of {len(jobs)} runs are left to do in {output}.", flush=True)

    class Watched(Progress):
        def ended(self, job: Job, problem: str) -> None:
            super().ended(job, problem)
            after()

    count = len(missing) if at_once is None else at_once
    queue = Queue(missing, launcher, at_once=count, others=finished, watch=Watched())
    outcome = queue.run()
    for name, problem in outcome.failed.items():
        print(f"{name} failed: {problem} (see {output / name / 'log.txt'})", file=sys.stderr)
    return outcome
