"""How long a complete incremental phase of a run takes, as a ratio to the plain network.

python benchmarks/phase_speed.py
python benchmarks/phase_speed.py --compile

A phase is what the runner does in it: the epochs, the updates of α, herding, class means, measuring
and saving. The proportions are those of CIFAR-100 with 50 classes first and then 10 in each phase:
500 new images of a class, 20 exemplars of an old one and 100 test images become 50, 2 and 10.
Images are random. The arms take turns. Time is the processor time of this process, which other
processes on the machine change less than the time on the clock. Writes
benchmarks/results/phase_speed.md.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from allocator import keep_memory
from tqdm import tqdm

from aanets_plugin.baselines import LUCIR, resnet32
from aanets_plugin.experiments import AANets, Memory, Training, load_data, scenarios
from aanets_plugin.experiments.runner import Run
from aanets_plugin.experiments.trainer import default_accelerator

BASE, NEW = 50, 10
IMAGES, TEST_IMAGES, EXEMPLARS = 50, 10, 2
ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "AANets": {"aanets": AANets()},
    "AANets, fixed α": {"aanets": AANets(alpha_lr=0.0)},
    "AANets, compiled": {"aanets": AANets(), "compiles": True},
    "plain, compiled": {"compiles": True},
}


def phases(folder: Path) -> tuple[Any, Any]:
    """Random images in the form of CIFAR-100."""
    random = np.random.default_rng(0)
    for part, count in (("train", IMAGES), ("test", TEST_IMAGES)):
        y = np.repeat(np.arange(BASE + NEW), count)
        x = random.integers(0, 256, (len(y), 32, 32, 3), dtype=np.uint8)
        np.savez(folder / f"{part}.npz", x=x, y=y)
    return scenarios(load_data("cifar100", folder), increments=[BASE, NEW])


def make_run(
    data: tuple[Any, Any],
    output: Path,
    training: Training,
    *,
    compiles: bool = False,
    **options: Any,
) -> Run:
    return Run(
        *data,
        resnet32,
        LUCIR(),
        output=output,
        memory=Memory(per_class=EXEMPLARS),
        training=training,
        accelerator=default_accelerator(cpu=True, compiles=compiles),
        progress=False,
        **options,
    )


def start(data: tuple[Any, Any], folder: Path, training: Training, arm: str) -> Path:
    """The folder of a run after its first phase."""
    base = folder / "plain" if arm != "plain" else None
    made = make_run(data, folder / arm, training, base=base, **ARMS[arm])
    made.folder.write_config(made.config)
    made.run_phase(0)
    return folder / arm


class Parts(NamedTuple):
    """The processor time of a phase: of each epoch, and of everything else."""

    epochs: list[float]
    rest: float

    @property
    def seconds(self) -> float:
        """The time of the phase, with the median epoch for all: the first one may compile."""
        return len(self.epochs) * statistics.median(self.epochs) + self.rest


def measure(data: tuple[Any, Any], started: Path, training: Training, arm: str) -> Parts:
    """Run the second phase."""
    epochs: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        output = shutil.copytree(started, Path(temporary, "run"))
        run = make_run(data, output, training, resume=True, **ARMS[arm])
        train = run.trainer.train

        def timed(*arguments: Any) -> float:
            begin = time.process_time()
            loss = train(*arguments)
            epochs.append(time.process_time() - begin)
            return loss

        run.trainer.train = timed  # type: ignore[method-assign]
        begin = time.process_time()
        run.run_phase(1)
        total = time.process_time() - begin
    return Parts(epochs, total - sum(epochs))


def row(arm: str, measured: dict[str, list[Parts]]) -> str:
    """A row of the table: ratios to the plain network, median and range over rounds."""

    def ratio(value: Callable[[Parts], float]) -> str:
        pairs = zip(measured[arm], measured["plain"], strict=True)
        ratios = [value(own) / value(plain) for own, plain in pairs]
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"

    values = [
        lambda parts: parts.seconds,
        lambda parts: statistics.median(parts.epochs),
        lambda parts: parts.rest,
    ]
    return " | ".join([f"| {arm}", *map(ratio, values)]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="phases of each arm (5)")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of a phase (5)")
    parser.add_argument("--compile", action="store_true", help="also measure compiled arms")
    parser.add_argument("--arms", nargs="+", choices=ARMS, help="these beside plain alone")
    parser.add_argument("--no-channels-last", action="store_true", help="channels first")
    here = Path(__file__).parent
    parser.add_argument("--output", type=Path, default=here / "results/phase_speed.md")
    args = parser.parse_args()

    torch.set_num_threads(1)
    keep_memory()
    arms = [arm for arm in ARMS if args.compile or "compiled" not in arm]
    if args.arms:
        arms = ["plain", *(arm for arm in args.arms if arm != "plain")]
    training = Training(
        epochs=args.epochs,
        base_epochs=1,
        batch_size=64,
        lr=0.01,
        channels_last=not args.no_channels_last,
    )
    measured: dict[str, list[Parts]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = phases(folder)
        started = {arm: start(data, folder, training, arm) for arm in arms}
        for repeat in tqdm(range(-1, args.repeats)):  # the first round warms up
            for arm in arms:
                parts = measure(data, started[arm], training, arm)
                if repeat >= 0:
                    measured[arm].append(parts)
                print(f"{arm}: {parts.seconds:.1f} s, epochs {parts.epochs}", file=sys.stderr)
    plain = statistics.median(parts.seconds for parts in measured["plain"])
    text = "\n".join(
        [
            "# Speed of a phase",
            "",
            "Processor time of a complete incremental phase of LUCIR (epochs, α, herding, means, "
            "measuring, saving), as a ratio to the plain network's in the same round: median "
            "(range) over rounds. A phase is its median epoch times their number, and the rest; so "
            "the time to compile is left out, which does not depend on the number of epochs.",
            "",
            f"ResNet-32, {NEW} new classes with {IMAGES} images and {BASE} old ones with "
            f"{EXEMPLARS} exemplars, batches of 64, {args.epochs} epochs, "
            f"{(BASE + NEW) * TEST_IMAGES} test images. The plain phase took "
            f"{plain:.1f} s.",
            "",
            f"`python {shlex.join(['benchmarks/phase_speed.py', *sys.argv[1:]])}`: {args.repeats} "
            f"rounds, one thread, seed 0, torch {torch.__version__.split('+')[0]}, "
            f"Python {platform.python_version()}, CPU.",
            "",
            "| | phase | epoch | rest |",
            "|---|---|---|---|",
            *(row(arm, measured) for arm in arms),
        ]
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
