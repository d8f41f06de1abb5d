"""The runs of evidence_plan.py: starts those that are missing, one process for each.

python benchmarks/evidence.py --data FOLDER

FOLDER has train.npz and test.npz with `x` and `y`. Checkpoints are in --runs, and an unfinished run
goes on from there. What a finished run leaves as text (config.json, metrics.jsonl, alpha.csv,
time.json) is copied to --keep; a run that is there is not run again. `--status` says how far all
runs are. evidence_tables.py makes tables and pictures from --keep.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from accuracy import Setting
from allocator import keep_memory
from evidence_holdout import HoldoutRun
from evidence_plan import ARMS, PLAN, PROTOCOLS, Planned

from aanets_plugin.baselines import METHODS, Joint
from aanets_plugin.experiments.plan import Plan, Source
from aanets_plugin.experiments.progress import Progress, describe
from aanets_plugin.experiments.queue import Job, Queue
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.runner import Run
from aanets_plugin.experiments.settings import Memory
from aanets_plugin.experiments.variants import Shared
from aanets_plugin.experiments.workers import Workers, environments

KEPT = ("config.json", "metrics.jsonl", "alpha.csv", "time.json")


def job_of(setting: Setting, planned: Planned) -> Job:
    """A planned run as a job of the queue."""
    protocol = PROTOCOLS[planned.protocol]
    source = Source("cifar100", setting.data, setting.images)
    data = source.load()
    shared = Shared(
        setting.backbone,
        Memory(per_class=setting.exemplars),
        setting.training,
        data.classes,
        data.input_shape,
    )
    method = {**METHODS, "joint": Joint}[planned.method]()
    settings = shared.settings(method, ARMS[planned.arm])
    if planned.arm == "half_lr":
        base, later = settings.training.lr_of(0), settings.training.lr / 2
        slower = dataclasses.replace(settings.training, base_lr=base, lr=later)
        settings = dataclasses.replace(settings, training=slower)
    plan = Plan(
        planned.name,
        source,
        settings,
        tuple(protocol.increments),
        planned.seed,
        precision=setting.precision,
        device="cpu",
        order=planned.order,
        kind=HoldoutRun if planned.arm == "holdout" else Run,
    )
    return plan.job(setting.runs)


class Keeper(Progress):
    """Shows how far the runs are, and keeps the text of those that end."""

    def __init__(self, keep: Path) -> None:
        self.keep = keep

    def ended(self, job: Job, problem: str) -> None:
        super().ended(job, problem)
        if not problem:
            keep_text(job, self.keep / job.name)


def keep_text(job: Job, target: Path) -> None:
    """Copy what a finished run leaves as text; metrics.jsonl last, which says it is whole."""
    target.mkdir(parents=True, exist_ok=True)
    for name in sorted(KEPT, key=lambda name: name == "metrics.jsonl"):
        if (job.folder / name).exists():
            shutil.copyfile(job.folder / name, target / name)


def is_kept(keep: Path, run: Planned) -> bool:
    return len(RunFolder(keep / run.name).rows()) == run.phases


def status(jobs: Sequence[Job], keep: Path) -> None:
    """Print how far each run is."""
    kept = 0
    for job in jobs:
        rows = RunFolder(keep / job.name).rows()
        state = describe(job) if job.folder.exists() else "waits"
        if len(rows) == job.phases:
            kept += 1
            state = f"finished: average {rows[-1][job.rule]['average']:.2f}"
        print(f"{job.name:40} {state}")
    print(f"{kept} of {len(jobs)} are finished.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results = Path(__file__).parent / "results" / "runs"
    parser.add_argument("--data", type=Path, required=True, help="folder with train.npz, test.npz")
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"), help="run folders")
    parser.add_argument("--keep", type=Path, default=results, help="what is kept of finished runs")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument(
        "--match",
        nargs="+",
        default=["*"],
        metavar="NAME",
        help="only runs with such names, as lucir-*-N5-*, in this order (default: all)",
    )
    parser.add_argument(
        "--precision", choices=("bf16", "no"), default="bf16", help="no: float32 (default: bf16)"
    )
    parser.add_argument("--status", action="store_true", help="say how far the runs are, and end")
    parser.add_argument("--trial", action="store_true", help="1 epoch and 25 images per class")
    args = parser.parse_args()
    small = args.trial
    setting = Setting(
        data=args.data,
        runs=args.runs,
        images=25 if small else 200,
        depth=3,
        base_epochs=1 if small else 30,
        epochs=1 if small else 5,
        batch_size=64,
        exemplars=20,
        precision=args.precision,
    )
    named = [run for name in args.match for run in PLAN if fnmatch.fnmatch(run.name, name)]
    wanted = list(dict.fromkeys(named))
    jobs = [job_of(setting, run) for run in PLAN]
    if args.status:
        status([job for job, run in zip(jobs, PLAN, strict=True) if run in wanted], args.keep)
        return
    keep_memory()
    left = [job_of(setting, run) for run in wanted if not is_kept(args.keep, run)]
    print(f"{time.strftime('%H:%M:%S')} {len(left)} of {len(wanted)} runs are left", flush=True)
    workers = Workers(environments(args.processes, threads=1, gpus=0))
    queue = Queue(left, workers, at_once=args.processes, others=jobs, watch=Keeper(args.keep))
    queue.run()


if __name__ == "__main__":
    main()
