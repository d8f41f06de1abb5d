"""How long inference takes in eager torch, folded, compiled and in ONNX Runtime.

python benchmarks/inference.py

Plain and converted networks take turns with all ways of running them, repeat by repeat; a ratio is
the median over repeats of a time to that of the plain network in eager torch in the same repeat.
Every way is checked to give the outputs of eager torch. Writes benchmarks/results/inference.md.
Training and memory are measured by benchmarks/speed.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from allocator import keep_memory
from speed import NETWORKS, build, data, seconds
from torch import Tensor, nn
from tqdm import tqdm

from aanets_plugin import export_onnx, fold

ARMS = {"plain": "plain", "AANet": "all+scaling"}
WAYS = ("eager", "folded", "torch.compile", "folded, torch.compile", "ONNX Runtime")
BASE = ("plain", "eager")


def onnx_session(model: nn.Module, x: Tensor, threads: int) -> Callable[[Tensor], Tensor]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        export_onnx(model, file, x)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def ways(network: str, arm: str, x: Tensor, threads: int) -> dict[str, Callable[[Tensor], Any]]:
    model = build(network, ARMS[arm]).train()
    with torch.no_grad():
        for _ in range(20):
            model(x)  # statistics of images, as a trained network has
    model.eval()
    folded = fold(model)
    return {
        "eager": model,
        "folded": folded,
        "torch.compile": torch.compile(model),
        "folded, torch.compile": torch.compile(folded),
        "ONNX Runtime": onnx_session(model, x, threads),
    }


def time_ratios(network: str, repeats: int, threads: int) -> dict[tuple[str, str], list[float]]:
    """Per network and way: the ratio to the plain network in eager torch, by repeat."""
    torch.set_num_threads(threads)
    x, _ = data(network)
    runs = {(arm, way): run for arm in ARMS for way, run in ways(network, arm, x, threads).items()}
    ratios: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    with torch.inference_mode():
        for (arm, way), run in tqdm(runs.items(), desc=f"{network}, first calls"):
            expected = runs[arm, "eager"](x)
            error = ((run(x) - expected).norm() / expected.norm()).item()
            if not error < 1e-4:
                raise SystemExit(f"{network}, {arm}, {way}: relative error {error:.2g}")
        for repeat in tqdm(range(-1, repeats), desc=network):  # the first round warms up
            times = {key: seconds(lambda run=run: run(x)) for key, run in runs.items()}
            if repeat >= 0:
                for key, value in times.items():
                    ratios[key].append(value / times[BASE])
    return ratios


def table(network: str, ratios: dict[tuple[str, str], list[float]]) -> str:
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
    here = Path(__file__).parent
    parser.add_argument("--output", type=Path, default=here / "results/inference.md")
    args = parser.parse_args()
    keep_memory()
    tables = []
    for network in NETWORKS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            ratios = pool.submit(time_ratios, network, args.repeats, args.threads).result()
        tables.append(table(network, ratios))
    text = "\n\n".join(
        [
            "# Inference",
            "Ratios to the plain network in eager torch in the same run: median (quartiles) over "
            "interleaved repeats, one batch each. AANet: blocks all+scaling, θ_base frozen.",
            f"`python {' '.join(['benchmarks/inference.py', *sys.argv[1:]])}`: {args.repeats} "
            f"repeats, {args.threads} thread(s), memory kept between steps, seed 0, torch "
            f"{torch.__version__.split('+')[0]}, ONNX Runtime {onnxruntime.__version__}, Python "
            f"{platform.python_version()}, CPU.",
            *tables,
        ]
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
