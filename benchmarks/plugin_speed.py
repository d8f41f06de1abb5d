"""What AANetPlugin costs in Avalanche: an epoch of Replay with it, as a ratio to one without it.

python benchmarks/plugin_speed.py

ResNet-32 on random 32x32 images, 10 classes and 10 more; timed are the epochs of the second
experience, data loading included. α fixed (`lr=0`) is the converted network with all that the
plugin does but the updates of α. All arms take turns, round by round; a ratio is the median over
rounds of an arm's time to that of Replay alone in the same round. Writes the table to
benchmarks/results/plugin_speed.md.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import avalanche
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.training.supervised import Replay
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

from aanets_plugin.adapters.avalanche import AANetPlugin
from aanets_plugin.baselines import resnet32

CLASSES, NEW_IMAGES, EXEMPLARS = 20, 60, 20  # of each class, the last two
ARMS: dict[str, Callable[[], list[Any]]] = {
    "Replay": lambda: [],
    "Replay with AANetPlugin, α fixed": lambda: [AANetPlugin(lr=0.0)],
    "Replay with AANetPlugin": lambda: [AANetPlugin(per_class=EXEMPLARS)],
}


class Timer:
    """Seconds of each epoch, updates of α included: it comes after AANetPlugin."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.start = time.perf_counter()

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.start)


def images() -> Any:
    """Two experiences of random images."""
    y = torch.arange(CLASSES).repeat_interleave(NEW_IMAGES)
    data = TensorDataset(torch.randn(len(y), 3, 32, 32), y)
    return nc_benchmark(data, data, n_experiences=2, task_labels=False, shuffle=False)


def seconds(arm: str, benchmark: Any, epochs: int) -> float:
    """An epoch of the second experience, mean over so many."""
    torch.manual_seed(0)
    model, timer = resnet32(CLASSES), Timer()
    strategy = Replay(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        mem_size=EXEMPLARS * CLASSES // 2,
        train_mb_size=64,
        train_epochs=1,
        plugins=[*ARMS[arm](), timer],
        evaluator=None,
    )
    first, second = benchmark.train_stream
    strategy.train(first)
    strategy.train_epochs = epochs
    strategy.train(second)
    return statistics.mean(timer.seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds over all arms (5)")
    parser.add_argument("--epochs", type=int, default=2, help="timed in a round (2)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    results = Path(__file__).parent / "results"
    parser.add_argument("--output", type=Path, default=results / "plugin_speed.md")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")  # Avalanche's, about itself

    benchmark = images()
    ratios: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in tqdm(range(args.repeats), desc="rounds"):
        times = {arm: seconds(arm, benchmark, args.epochs) for arm in ARMS}
        for arm, value in times.items():
            ratios[arm].append(value / times["Replay"])
    rows = [
        f"| {arm} | {statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f}) |"
        for arm, values in ratios.items()
    ]
    old, new = CLASSES // 2, CLASSES - CLASSES // 2
    text = "\n".join(
        [
            "# Speed of AANetPlugin",
            "",
            "Time of an epoch of the second experience, as a ratio to Replay alone in the same "
            "round: median (range) over rounds.",
            "",
            f"ResNet-32, {new * NEW_IMAGES} new 32x32 images in batches of 64, each with 64 of "
            f"{EXEMPLARS * old} exemplars; α learns on {EXEMPLARS * CLASSES} images once an epoch.",
            "",
            f"`python {' '.join(['benchmarks/plugin_speed.py', *sys.argv[1:]])}`: {args.repeats} "
            f"rounds of {args.epochs} epochs, {args.threads} thread(s), seed 0, "
            f"torch {torch.__version__.split('+')[0]}, Avalanche {avalanche.__version__}, "
            f"Python {platform.python_version()}, CPU.",
            "",
            "| | epoch |",
            "|---|---|",
            *rows,
        ]
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
