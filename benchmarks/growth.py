"""How the cost of a run grows: with the number of phases, and with the number of image files.

python benchmarks/growth.py
python benchmarks/growth.py --files 1300 --phases 5 10 --output growth.md    # a quick look

Phases: LUCIR with AANets on random 32x32 images of 100 classes, 50 of them first, in runs of 5, 10,
25 and 50 phases. Files: a tree of small PNG files in 100 classes, read as a dataset, split into
phases, and hashed for config.json. Times are processor times of one thread. Writes
benchmarks/results/growth.md.
"""

from __future__ import annotations

import argparse
import io
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from allocator import keep_memory
from PIL import Image
from tqdm import tqdm

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines import LUCIR, CifarResNet
from aanets_plugin.experiments import AANets, Memory, Training, load_data, scenarios
from aanets_plugin.experiments.runner import Run

CLASSES, BASE = 100, 50
IMAGES, EXEMPLARS = 10, 2


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    value = action()
    return time.process_time() - start, value


# -- phases ----------------------------------------------------------------------------------------


def network() -> CifarResNet:
    return CifarResNet(1, CLASSES)


def random_images(folder: Path) -> Any:
    random = np.random.default_rng(0)
    for part in ("train", "test"):
        y = np.repeat(np.arange(CLASSES), IMAGES)
        x = random.integers(0, 256, (len(y), 32, 32, 3), dtype=np.uint8)
        np.savez(folder / f"{part}.npz", x=x, y=y)
    return load_data("cifar100", folder)


def cost_of_phases(count: int, epochs: int, connection: Any) -> None:
    """The seconds of every phase, the peak of the memory in MB, the last checkpoints in MB."""
    torch.set_num_threads(1)
    keep_memory()
    with tempfile.TemporaryDirectory() as temporary:
        data = random_images(Path(temporary))
        run = Run(
            *scenarios(data, phases=count),
            network,
            LUCIR(),
            aanets=AANets(),
            output=Path(temporary, "run"),
            memory=Memory(per_class=EXEMPLARS),
            training=Training(epochs=epochs, batch_size=64, lr=0.01),
            progress=False,
        )
        seconds = [timed(lambda p=phase: run.run_phase(p))[0] for phase in range(count + 1)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sizes = [file.stat().st_size / 2**20 for file in (run.folder.phase, run.folder.epoch)]
    connection.send((seconds, peak, sizes))


def in_a_process(function: Callable[..., None], *arguments: Any) -> Any:
    """What `function` sends, from a process of its own: the peak of memory is that of one run."""
    context = get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(*arguments, send))
    process.start()
    result = receive.recv()
    process.join()
    return result


def phases_table(counts: list[int], epochs: int) -> list[str]:
    lines = [
        "| phases | new classes | first phase after the base | last phase | per new image, "
        "first | last | peak memory | phase.pt | epoch.pt |",
        "|---" * 9 + "|",
    ]
    for count in tqdm(counts, desc="phases"):
        seconds, peak, sizes = in_a_process(cost_of_phases, count, epochs)
        new = (CLASSES - BASE) // count
        first, last = seconds[1], seconds[-1]
        images = new * IMAGES
        lines.append(
            f"| {count} | {new} | {first:.2f} s | {last:.2f} s | {1000 * first / images:.1f} ms | "
            f"{1000 * last / images:.1f} ms | {peak:.0f} MB | {sizes[0]:.1f} MB | "
            f"{sizes[1]:.1f} MB |"
        )
    return lines


# -- files -----------------------------------------------------------------------------------------


def write_tree(root: Path, files: int) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "png")
    content = picture.getvalue()
    for part, count in (("train", files // CLASSES), ("val", 1)):
        for label in range(CLASSES):
            folder = root / part / f"n{label:08}"
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"n{label:08}_{number}.png").write_bytes(content)


def files_table(files: int) -> list[str]:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_tree(root, files)
        read, data = timed(lambda: load_data("folder", root, image_size=8))
        split, pair = timed(lambda: scenarios(data, phases=25))
        check, phases = timed(lambda: Phases(*pair))
        digest, _ = timed(lambda: phases.digest)
        phase, _ = timed(lambda: phases.train(25))
    steps = {
        "read the tree": read,
        "split it into 1 + 25 phases": split,
        "check the phases": check,
        "hash the names": digest,
        "take one phase": phase,
    }
    lines = ["| step | seconds |", "|---|---|"]
    return lines + [f"| {name} | {value:.2f} |" for name, value in steps.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=130_000, help="image files (130000)")
    parser.add_argument("--phases", type=int, nargs="+", default=[5, 10, 25, 50])
    parser.add_argument("--epochs", type=int, default=2, help="epochs of a phase (2)")
    here = Path(__file__).parent
    parser.add_argument("--output", type=Path, default=here / "results/growth.md")
    args = parser.parse_args()
    text = "\n".join(
        [
            "# Growth of cost",
            "",
            f"`python {' '.join(['benchmarks/growth.py', *sys.argv[1:]])}`: one thread, processor "
            f"time, seed 0, torch {torch.__version__.split('+')[0]}, "
            f"Python {platform.python_version()}, CPU.",
            "",
            "## With the number of phases",
            "",
            f"LUCIR with AANets, a ResNet-8, {CLASSES} classes with {IMAGES} images for training "
            f"and {IMAGES} for testing, {BASE} of them in the first phase, {EXEMPLARS} exemplars "
            f"per class, {args.epochs} epochs. A phase trains on the exemplars of all old classes, "
            f"and is measured on all classes seen: this grows with the classes by nature.",
            "",
            *phases_table(args.phases, args.epochs),
            "",
            f"## With the number of files: {args.files}",
            "",
            *files_table(args.files),
        ]
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
