"""The four baselines with and without AANets on CIFAR-100: the paper's Table 2 in a small setting.

python benchmarks/accuracy.py --data FOLDER

FOLDER has train.npz and test.npz with `x` and `y`. 50 classes first, then 5 phases of 10. For each
method and seed three arms start from the same trained first phase: the plain network, AANets with
learned α, AANets with α fixed at 0.5. Runs are kept in --runs and go on from there when the script
is started again; tables and pictures go to --output, of whatever is finished.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from allocator import keep_memory
from tqdm import tqdm

from aanets_plugin.baselines import METHODS, CifarResNet
from aanets_plugin.config import AANetConfig
from aanets_plugin.experiments import (
    AANets,
    Memory,
    Result,
    Training,
    load_data,
    paired_table,
    plot_accuracy,
    results_table,
    scenarios,
)
from aanets_plugin.experiments.results import RULES, interval, signed
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.runner import Run
from aanets_plugin.experiments.trainer import default_accelerator

ARMS = {"plain": None, "learned": AANets(), "fixed": AANets(alpha_lr=0.0)}
NAMES = {"plain": "plain", "learned": "AANets, learned α", "fixed": "AANets, fixed α"}
PAIRS = [("learned", "plain"), ("fixed", "plain"), ("learned", "fixed")]
"""Which arms are compared."""
FIRST = {"cosine": ("lucir", "plain"), "proxies": ("podnet", "plain")}
"""Whose first phase all runs with this type of head start from."""

Job = tuple[str, str, int]
"""Method, arm, seed."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all runs share."""

    data: Path
    runs: Path
    images: int
    depth: int
    base_epochs: int
    epochs: int
    batch_size: int
    exemplars: int
    precision: str

    @property
    def training(self) -> Training:
        return Training(
            epochs=self.epochs,
            base_epochs=self.base_epochs,
            batch_size=self.batch_size,
            schedule="cosine",
        )

    def backbone(self) -> CifarResNet:
        return CifarResNet(self.depth, 100).to(memory_format=torch.channels_last)


def prepare(setting: Setting, method: str, name: str, aanets: AANetConfig | None, seed: int) -> Run:
    """The run in the folder `name`, as far as it got; waits for the first phase it starts from."""
    torch.set_num_threads(1)
    data = load_data("cifar100", setting.data, per_class=setting.images)
    train, test = scenarios(data, base_classes=50, phases=5)
    first = "-".join([*FIRST[METHODS[method].head_type], str(seed)])
    while name != first and not RunFolder(setting.runs / first).base.exists():
        time.sleep(5)
    return Run(
        train,
        test,
        setting.backbone,
        METHODS[method](),
        aanets=aanets,
        memory=Memory(per_class=setting.exemplars),
        training=setting.training,
        seed=seed,
        output=setting.runs / name,
        resume=True,
        base=None if name == first else setting.runs / first,
        accelerator=default_accelerator(cpu=True, mixed_precision=setting.precision),
        progress=False,
    )


def one(setting: Setting, method: str, arm: str, seed: int) -> Result:
    """One run; a finished one is read from its folder."""
    return prepare(setting, method, f"{method}-{arm}-{seed}", ARMS[arm], seed).finish()


def jobs_of(seeds: dict[str, list[int]]) -> list[Job]:
    """Runs whose first phase others start from come first, then method by method."""
    jobs = [(method, arm, seed) for method, some in seeds.items() for seed in some for arm in ARMS]
    return sorted(jobs, key=lambda job: job[:2] not in FIRST.values())


def report(setting: Setting, results: dict[Job, Result], command: str, output: Path) -> str:
    """Tables of all methods that have a finished run, as markdown; pictures beside them."""
    lines = ["# Accuracy on CIFAR-100", "", f"`{command}`", "", describe(setting), ""]
    lines += [overview(results), ""]
    for method, kind in METHODS.items():
        found = [result for (name, _, _), result in results.items() if name == method]
        if not found:
            continue
        reported = kind.predicts_by
        picture = output / f"accuracy_{method}.png"
        plot_accuracy(found, picture, rule=reported, title=f"{method} on CIFAR-100")
        lines += [f"## {method}", "", results_table(found, reported=reported), ""]
        if len({result.arm for result in found}) > 1:
            lines += [paired_table(found, reported=reported), ""]
        lines += [f"![accuracy of {method}]({picture.name})", ""]
        alpha = setting.runs / f"{method}-learned-0" / "alpha.png"
        if alpha.exists():
            copy = output / f"alpha_{method}.png"
            shutil.copyfile(alpha, copy)
            lines += [f"![α of {method}, seed 0]({copy.name})", ""]
    return "\n".join(lines)


def overview(results: dict[Job, Result]) -> str:
    """A row for each method, by the rule its authors report, and one for all pairs of runs."""
    header = ["baseline", "by", *NAMES.values(), *(f"{a} - {b}" for a, b in PAIRS), "seeds"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    gains: dict[tuple[str, str], list[float]] = {pair: [] for pair in PAIRS}
    for method, kind in METHODS.items():
        found: dict[str, dict[int, float]] = {arm: {} for arm in ARMS}
        for (name, arm, seed), result in results.items():
            metrics = result.by(kind.predicts_by)
            if name == method and metrics is not None:
                found[arm][seed] = metrics[-1]["average"]
        seeds = sorted(set.intersection(*(set(runs) for runs in found.values())))
        if not seeds:
            continue
        cells = [method, RULES[kind.predicts_by]]
        cells += [f"{fmean(found[arm][seed] for seed in seeds):.2f}" for arm in ARMS]
        for a, b in PAIRS:
            own = [found[a][seed] - found[b][seed] for seed in seeds]
            gains[a, b] += own
            cells.append(", ".join(map(signed, own)))
        lines.append("| " + " | ".join([*cells, ", ".join(map(str, seeds))]) + " |")
    means = [f"{signed(fmean(own))} ({interval(own)})" for own in gains.values() if own]
    if means:
        lines.append("| " + " | ".join(["all pairs", "", *("" for _ in ARMS), *means, ""]) + " |")
    return "\n".join(
        [
            *lines,
            "",
            "Average incremental accuracy in per cent, mean over seeds. Differences are in points, "
            "between runs with the same seed and first phase, one for each seed; in the last row "
            "their mean and its 95% interval by Student's t, which takes them for independent, "
            "though methods share first phases.",
        ]
    )


def describe(setting: Setting) -> str:
    return (
        f"ResNet-{6 * setting.depth + 2}, 50 classes first, then 5 phases of 10 in the paper's "
        f"order; {setting.images} training images and {setting.exemplars} exemplars per class, "
        f"all test images; {setting.base_epochs} epochs in the first phase, "
        f"{setting.epochs} in each of the others, batches of {setting.batch_size}, learning rate "
        f"{setting.training.lr} falling to 0 as a cosine, the paper's augmentation, precision "
        f"{'float32' if setting.precision == 'no' else setting.precision}. All arms of a method "
        f"and seed start from the same first phase."
    )


def options(description: str | None) -> argparse.ArgumentParser:
    """The options of a setting, for this script and for others that run in it."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results = Path(__file__).parent / "results"
    parser.add_argument("--data", type=Path, required=True, help="folder with train.npz, test.npz")
    parser.add_argument("--runs", type=Path, default=Path("runs/accuracy"), help="run folders")
    parser.add_argument("--output", type=Path, default=results, help="for tables and pictures")
    parser.add_argument("--images", type=int, default=200, help="for training, of each class")
    parser.add_argument("--depth", type=int, default=3, help="blocks of a stage: 3 is ResNet-20")
    parser.add_argument("--base-epochs", type=int, default=30, help="of the first phase")
    parser.add_argument("--epochs", type=int, default=5, help="of each later phase")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--exemplars", type=int, default=20, help="of each class")
    parser.add_argument("--precision", choices=["no", "bf16"], default="no", help="no: float32")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of LUCIR and iCaRL")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    return parser


def command_of(script: str, parser: argparse.ArgumentParser, args: dict[str, Any]) -> str:
    """The command line, whatever the places it was run in."""
    words = ["python", f"benchmarks/{script}", "--data", "FOLDER"]
    places = ("data", "runs", "output", "processes")
    for name, value in args.items():
        if name not in places and value != parser.get_default(name):
            values = value if isinstance(value, list) else [value]
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return " ".join(words)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--other-seeds", type=int, nargs="+", default=[0], help="of the others")
    args = vars(parser.parse_args())
    command = command_of("accuracy.py", parser, args)
    output, processes = args.pop("output"), args.pop("processes")
    seeds = {"lucir": args.pop("seeds")}
    seeds["icarl"] = seeds["lucir"]
    seeds["podnet"] = seeds["mnemonics"] = args.pop("other_seeds")
    setting = Setting(**args)
    output.mkdir(parents=True, exist_ok=True)

    keep_memory()
    done: dict[Job, Result] = {}
    jobs = jobs_of(seeds)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(one, setting, *job): job for job in jobs}
        for future in tqdm(as_completed(running), total=len(jobs), desc="runs"):
            job = running[future]
            done[job] = future.result()
            (last,) = done[job].head[-1:]
            tqdm.write(f"{'-'.join(map(str, job))}: average by head {last['average']:.2f}")
            in_order = {job: done[job] for job in jobs if job in done}
            text = report(setting, in_order, command, output)
            (output / "accuracy.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
