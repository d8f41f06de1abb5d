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
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from accuracy import Setting
from allocator import keep_memory
from evidence_plan import ARMS, PLAN, PROTOCOLS, Planned

from aanets_plugin.baselines import METHODS, Joint
from aanets_plugin.budget import MemoryBudget
from aanets_plugin.config import AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.experiments import checkpoint
from aanets_plugin.experiments.datasets import load_data, scenarios
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.runner import Run
from aanets_plugin.experiments.settings import AANets, Memory
from aanets_plugin.experiments.splits import paper_order
from aanets_plugin.experiments.trainer import default_accelerator

KEPT = ("config.json", "metrics.jsonl", "alpha.csv", "time.json")
SECONDS = 5.0
"""How often the time of a run is written."""


# -- one run -------------------------------------------------------------------------------------


def prepare(setting: Setting, planned: Planned) -> Run:
    """The run, as far as it got; its first phase is taken from another run if one has it."""
    torch.set_num_threads(1)
    arm, protocol = ARMS[planned.arm], PROTOCOLS[planned.protocol]
    data = load_data("cifar100", setting.data, per_class=setting.images)
    train, test = scenarios(
        data,
        base_classes=protocol.base_classes,
        phases=protocol.phases,
        order=paper_order(data.classes, planned.order),
    )
    epochs = round(setting.epochs * protocol.epochs * arm.epochs)
    run = Run(
        train,
        test,
        setting.backbone,
        {**METHODS, "joint": Joint}[planned.method](),
        aanets=None if arm.aanets is None else AANets(**arm.aanets),
        memory=memory_of(setting, arm.memory, data.classes, data.input_shape),
        training=dataclasses.replace(setting.training, epochs=epochs),
        seed=planned.seed,
        output=setting.runs / planned.name,
        resume=True,
        accelerator=default_accelerator(cpu=True, mixed_precision=setting.precision),
        progress=False,
    )
    source = first_phase_folder(setting.runs, planned)
    if source is not None and not run.state.rows:
        run.base = load_first_phase(source, run.base_config)
    return run


def memory_of(
    setting: Setting, memory: str, classes: int, input_shape: tuple[int, int, int]
) -> Memory:
    """Exemplars per class; "more" is more by as many as "strict" is less."""
    strict = Memory(per_class=setting.exemplars, strict=True)
    if memory != "more":
        return strict if memory == "strict" else dataclasses.replace(strict, strict=False)
    budget = MemoryBudget(setting.exemplars, classes, input_shape)
    extra = setting.exemplars - budget.exemplars_for(convert_to_aanet(setting.backbone()))
    return Memory(per_class=setting.exemplars + extra)


def first_phase_folder(runs: Path, planned: Planned) -> Path | None:
    """The folder of a run that has trained the first phase of `planned`."""
    folders = (runs / other.name for other in PLAN if other.first_phase == planned.first_phase)
    return next((folder for folder in folders if RunFolder(folder).base.exists()), None)


def load_first_phase(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """The network that the run in `folder` had after its first phase.

    `Run(base=...)` asks for the same phases, too. Here the later ones may differ: the digest is
    that of all samples with their labels in the class order, so that runs with the same digest and
    equally many classes in the first phase have the same first phase.
    """
    state = checkpoint.load(RunFolder(folder).base)
    assert state is not None
    there, here = (_of_first_phase(config) for config in (state["config"], wanted))
    different = [key for key in here if there.get(key) != here[key]]
    if different:
        raise SystemExit(f"{folder}: its first phase differs in {', '.join(different)}.")
    net: dict[str, Any] = state["net"]
    return net


def _of_first_phase(base_config: dict[str, Any]) -> dict[str, Any]:
    data = base_config["data"]
    first = {"increments": data["increments"][0], "samples": data["samples"][0]}
    return {**base_config, "data": {**data, **first}}


def keep_time(folder: Path) -> None:
    """Write the seconds that each phase takes to time.json, from now on until the process ends.

    Processor time says what a run costs even if the machine has other work; both are kept.
    """
    file = folder / "time.json"
    times = json.loads(file.read_text()) if file.exists() else {}
    clocks = {"cpu_seconds": time.process_time, "wall_seconds": time.monotonic}
    last = {name: clock() for name, clock in clocks.items()}
    versions = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}

    def write() -> None:
        phase = len(rows_of(folder))
        for name, clock in clocks.items():
            seconds = times.setdefault(name, [])
            seconds += [0.0] * (phase + 1 - len(seconds))
            now = clock()
            seconds[phase] = round(seconds[phase] + now - last[name], 1)
            last[name] = now
        checkpoint.write_text(file, json.dumps({**times, **versions}) + "\n")

    def go_on() -> None:
        while True:
            time.sleep(SECONDS)
            write()

    threading.Thread(target=go_on, daemon=True).start()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """What was measured, one row for each phase that is over."""
    file = folder / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


# -- all runs ------------------------------------------------------------------------------------


class Queue:
    """The runs that are missing, in the order of the plan."""

    def __init__(self, setting: Setting, keep: Path, wanted: list[Planned]) -> None:
        self.setting, self.keep = setting, keep
        self.waiting = [run for run in wanted if not is_finished(keep, run) and is_possible(run)]
        self.running: list[Planned] = []
        self.lock = threading.Lock()

    def take(self) -> Planned | None:
        """The next run; one whose first phase is being trained by another has to wait for it."""
        with self.lock:
            busy = {run.first_phase for run in self.running}
            for run in self.waiting:
                if run.first_phase not in busy or first_phase_folder(self.setting.runs, run):
                    self.waiting.remove(run)
                    self.running.append(run)
                    return run
        return None

    def work(self) -> None:
        """Run what is left, one after another."""
        while self.waiting:
            run = self.take()
            if run is None:
                time.sleep(SECONDS)
                continue
            say(f"{run.name}: starts")
            code = subprocess.run([sys.executable, *sys.argv, "--only", run.name]).returncode
            if code == 0:
                self.keep_text(run)
            say(f"{run.name}: " + (f"failed with {code}" if code else average(self.keep, run)))
            with self.lock:
                self.running.remove(run)

    def keep_text(self, run: Planned) -> None:
        """Copy what a finished run leaves as text; metrics.jsonl last, which says it is whole."""
        target = self.keep / run.name
        target.mkdir(parents=True, exist_ok=True)
        for name in sorted(KEPT, key=lambda name: name == "metrics.jsonl"):
            source = self.setting.runs / run.name / name
            if source.exists():
                shutil.copyfile(source, target / name)


def is_finished(keep: Path, run: Planned) -> bool:
    return len(rows_of(keep / run.name)) == run.phases


def is_possible(run: Planned) -> bool:
    """Whether this version of the code has the options that the run needs."""
    known = {"alpha_lr", *(field.name for field in dataclasses.fields(AANetConfig))}
    return set(ARMS[run.arm].aanets or {}) <= known


def average(folder: Path, run: Planned) -> str:
    rows = rows_of(folder / run.name)
    rule = METHODS.get(run.method, Joint).predicts_by
    return f"phase {len(rows) - 1} of {run.phases - 1}, average {rows[-1][rule]['average']:.2f}"


def status(setting: Setting, keep: Path, wanted: list[Planned]) -> None:
    """Print how far each run is."""
    for run in wanted:
        if is_finished(keep, run):
            state = f"finished: {average(keep, run)}"
        elif not is_possible(run):
            state = "later: this version has no such option"
        elif rows_of(setting.runs / run.name):
            state = f"begun: {average(setting.runs, run)}"
        else:
            state = "begun" if (setting.runs / run.name).exists() else "waits"
        print(f"{run.name:40} {state}")
    print(f"{sum(is_finished(keep, run) for run in wanted)} of {len(wanted)} are finished.")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results = Path(__file__).parent / "results" / "runs"
    parser.add_argument("--data", type=Path, required=True, help="folder with train.npz, test.npz")
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"), help="run folders")
    parser.add_argument("--keep", type=Path, default=results, help="what is kept of finished runs")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--match", default="*", help="only runs with such a name, as lucir-*-N5-*")
    parser.add_argument("--status", action="store_true", help="say how far the runs are, and end")
    parser.add_argument("--trial", action="store_true", help="1 epoch and 25 images per class")
    parser.add_argument("--only", help="run this one in this process")
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
        precision="bf16",
    )
    wanted = [run for run in PLAN if fnmatch.fnmatch(run.name, args.match)]
    if args.only:
        (planned,) = (run for run in PLAN if run.name == args.only)
        run = prepare(setting, planned)
        keep_time(run.folder.path)
        run.finish()
    elif args.status:
        status(setting, args.keep, wanted)
    else:
        keep_memory()
        os.environ["OMP_NUM_THREADS"] = "1"
        queue = Queue(setting, args.keep, wanted)
        say(f"{len(queue.waiting)} of {len(wanted)} runs are left")
        with ThreadPoolExecutor(args.processes) as pool:
            for worker in [pool.submit(queue.work) for _ in range(args.processes)]:
                worker.result()


if __name__ == "__main__":
    main()
