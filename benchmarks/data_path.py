"""Whether the loader keeps up with the network: its time per batch as a share of a training step.

python benchmarks/data_path.py

The runner's own loader over a Continuum task set, with CIFAR-100's and ImageNet's transforms, in
the process that trains (no workers), beside a training step of the plain network and of AANets on
the same batch. Images are random: what is in them takes no time. Writes
benchmarks/results/data_path.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models import resnet18
from tqdm import tqdm

from aanets_plugin import convert_to_aanet
from aanets_plugin.baselines import LUCIR, resnet32
from aanets_plugin.baselines.lifecycle import MethodLoss, build_network, teacher_of
from aanets_plugin.experiments import load_data, scenarios

CLASSES, IMAGES = 4, 64


def arrays(folder: Path) -> Any:
    """A phase of CIFAR-like arrays."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    for part in ("train", "test"):
        x = random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
        np.savez(folder / f"{part}.npz", x=x, y=labels)
    return scenarios(load_data("cifar100", folder), base_classes=2, phases=1)[0][0]


def pictures(folder: Path) -> Any:
    """A phase of JPEG files of ImageNet's usual size."""
    random = np.random.default_rng(0)
    for part, count in (("train", 16), ("val", 1)):
        for label in range(CLASSES):
            below = folder / part / str(label)
            below.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((500, 375)).save(below / f"{i}.jpg")
    return scenarios(load_data("folder", folder), base_classes=2, phases=1)[0][0]


CASES: dict[str, tuple[Callable[[Path], Any], Callable[[], nn.Module], int]] = {
    "ResNet-32, arrays 32x32": (arrays, resnet32, 128),
    "ResNet-18, JPEG files to 224x224": (pictures, resnet18, 16),
}


def step_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """A training step of LUCIR, teacher included."""
    method = LUCIR()
    teacher = teacher_of(net)  # type: ignore[arg-type]
    net.fc = method.grow(net.fc, 2)
    loss_module = MethodLoss(method, net, teacher).train()  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss_module(x, y).backward()
        optimizer.step()

    return step


def measure(case: str, repeats: int) -> str:
    data, backbone, batch = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        taskset = data(Path(folder))
        loader = DataLoader(taskset, batch_size=batch, shuffle=True)
        x, y, _ = next(iter(loader))
        nets = [build_network(backbone, LUCIR(), 2, tuple(x.shape[1:])) for _ in range(2)]
        convert_to_aanet(nets[1].backbone)
        jobs: list[Callable[[], Any]] = [lambda: next(iter(loader))]
        jobs += [step_of(net, x, y) for net in nets]
        times: list[list[float]] = [[] for _ in jobs]
        for repeat in tqdm(range(repeats + 1), desc=case):
            for job, seconds in zip(jobs, times, strict=True):
                start = time.perf_counter()
                job()
                if repeat:  # the first one warms up
                    seconds.append(time.perf_counter() - start)
    load, *steps = (statistics.median(seconds) for seconds in times)
    shares = " | ".join(f"{100 * load / step:.1f}%" for step in steps)
    return f"| {case} | {batch} | {shares} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="batches of each (9)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results/data_path.md"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lines = [
        "# The loader beside a training step",
        "",
        f"`python benchmarks/data_path.py`: {args.repeats} batches, {args.threads} thread(s), "
        f"torch "
        f"{torch.__version__.split('+')[0]}, CPU, no workers. Median time of loading a batch as a "
        f"share of LUCIR's training step on it.",
        "",
        "| data | batch | of a step, plain | of a step, AANets |",
        "|---|---|---|---|",
        *(measure(case, args.repeats) for case in CASES),
    ]
    text = "\n".join(lines) + "\n"
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
