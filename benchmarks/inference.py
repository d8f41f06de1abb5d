"""How long inference takes in eager torch, folded, compiled and in ONNX Runtime.

python benchmarks/inference.py

Plain and converted networks take turns with all ways of running them, repeat by repeat; a ratio is
the median over repeats of a time to that of the plain network in eager torch in the same repeat.
Each way has a process of its own, since what one leaves in the allocator changes the time of the
next. Every way is checked to give the outputs of eager torch. Writes the table to
benchmarks/results/inference.md. Where ONNX Runtime spends the time is measured by
benchmarks/onnx_operators.py, training and memory by benchmarks/speed.py.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from allocator import keep_memory
from speed import MEMORY, NETWORKS, build, data, seconds
from torch import Tensor, nn
from tqdm import tqdm

from aanets_plugin import export_onnx, fold

ARMS = {"plain": "plain", "AANet": "all+scaling"}
WAYS = ("eager", "folded", "torch.compile", "folded, torch.compile", "ONNX Runtime")
BASE = ("plain", "eager")

Ratios = dict[tuple[str, str], list[float]]


def images(network: str) -> Tensor:
    torch.manual_seed(0)
    return data(network)[0]


def write_models(network: str, folder: Path) -> None:
    """Write each arm as a state_dict and as an ONNX file."""
    x = images(network)
    for arm, blocks in ARMS.items():
        model = build(network, blocks).train()
        with torch.no_grad():
            for _ in range(20):
                model(x)  # statistics of images, as a trained network has
        torch.save(model.eval().state_dict(), folder / f"{arm}.pt")
        export_onnx(model, folder / f"{arm}.onnx", x)


def session(file: Path, threads: int, **options: Any) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    for name, value in options.items():
        setattr(settings, name, value)
    return onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])


def runner(network: str, arm: str, way: str, folder: Path, threads: int) -> Callable[[], Any]:
    """Return a function that runs the network on one batch."""
    torch.set_num_threads(threads)
    x = images(network)
    if way == "ONNX Runtime":
        network_in_onnx = session(folder / f"{arm}.onnx", threads)
        return lambda: network_in_onnx.run(None, {"images": x.numpy()})[0]
    model: nn.Module = build(network, ARMS[arm]).eval()
    model.load_state_dict(torch.load(folder / f"{arm}.pt", weights_only=True))
    if "folded" in way:
        model = fold(model)
    run = torch.compile(model) if "torch.compile" in way else model

    def step() -> np.ndarray:
        with torch.inference_mode():
            return run(x).numpy()  # type: ignore[no-any-return]

    return step


_runner: Callable[[], Any]  # of this process


def start(*way: Any) -> np.ndarray:
    """Make the runner of this process; return its output."""
    global _runner
    _runner = runner(*way)
    return _runner()  # type: ignore[no-any-return]


def measure() -> float:
    return seconds(_runner)


def process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def time_ratios(network: str, folder: Path, repeats: int, threads: int) -> Ratios:
    """Per network and way: the ratio to the plain network in eager torch, by repeat."""
    ratios: Ratios = {(arm, way): [] for arm in ARMS for way in WAYS}
    with contextlib.ExitStack() as stack:
        pools = {key: stack.enter_context(process()) for key in ratios}
        first = {key: p.submit(start, network, *key, folder, threads) for key, p in pools.items()}
        for (arm, way), future in tqdm(first.items(), desc=f"{network}, first calls"):
            expected = first[arm, "eager"].result()
            error = np.linalg.norm(future.result() - expected) / np.linalg.norm(expected)
            if not error < 1e-4:
                raise SystemExit(f"{network}, {arm}, {way}: relative error {error:.2g}")
        for repeat in tqdm(range(-1, repeats), desc=network):  # the first round warms up
            times = {key: pool.submit(measure).result() for key, pool in pools.items()}
            if repeat >= 0:
                for key, value in times.items():
                    ratios[key].append(value / times[BASE])
    return ratios


def table(network: str, ratios: Ratios) -> str:
    lines = [f"### {network}", "", "| | " + " | ".join(WAYS) + " |", "|---" * (len(WAYS) + 1) + "|"]
    for arm in ARMS:
        cells = []
        for way in WAYS:
            low, *_, high = statistics.quantiles(ratios[arm, way], n=4)
            cells.append(f"{statistics.median(ratios[arm, way]):.2f} ({low:.2f}–{high:.2f})")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="rounds over all arms (15)")
    parser.add_argument("--threads", type=int, default=1, help="of torch and ONNX Runtime (1)")
    parser.add_argument(
        "--allocator",
        choices=["kept", "default"],
        default="kept",
        help="whether memory is kept between steps or, glibc's default, given back (kept)",
    )
    here = Path(__file__).parent
    parser.add_argument("--output", type=Path, default=here / "results/inference.md")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.allocator == "kept":
        keep_memory()
    tables = []
    for network in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            write_models(network, Path(folder))
            ratios = time_ratios(network, Path(folder), args.repeats, args.threads)
        tables.append(table(network, ratios))
    text = "\n\n".join(
        [
            "# Inference",
            "Ratios to the plain network in eager torch in the same run: median (quartiles) over "
            "interleaved repeats, one batch each, each way in a process of its own. AANet: blocks "
            "all+scaling, θ_base frozen. Eager torch: the model in eval mode, as it was built, "
            "under torch.inference_mode.",
            f"`python {' '.join(['benchmarks/inference.py', *sys.argv[1:]])}`: {args.repeats} "
            f"repeats, {args.threads} thread(s), {MEMORY[args.allocator]}, seed 0, "
            f"torch {torch.__version__.split('+')[0]}, ONNX Runtime {onnxruntime.__version__}, "
            f"Python {platform.python_version()}, CPU.",
            *tables,
        ]
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
