"""How long a converted network takes, as a ratio to the plain one in the same run.

python benchmarks/speed.py

All arms take turns, repeat by repeat; a ratio is the median over repeats of an arm's time to the
plain network's in the same repeat. Peak memory is that of one training step beyond what the process
had before it, each arm in a process of its own. Writes the table to benchmarks/results/speed.md.
The cost of AANetPlugin in Avalanche's loop is measured by benchmarks/plugin_speed.py, torch.compile
and ONNX Runtime by benchmarks/inference.py, a complete phase of a run by benchmarks/phase_speed.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from allocator import keep_memory
from torch import Tensor, nn
from torchvision.models import resnet18
from tqdm import tqdm

from aanets_plugin import (
    BilevelStrategy,
    convert_to_aanet,
    fold,
    levels,
    parameter_groups,
    thaw_base,
)
from aanets_plugin.baselines import resnet32

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-32, 64 x 32x32": (lambda: resnet32(50), (64, 3, 32, 32)),
    "ResNet-18, 8 x 112x112": (lambda: resnet18(num_classes=50), (8, 3, 112, 112)),
}
ARMS = ("plain", "base phase", "all+scaling", "all+frozen", "scaling+frozen")
MEMORY = {
    "kept": "memory kept between steps",
    "default": "memory given back to the system between steps, as is glibc's default",
}
COLUMNS = ("training step", "α update", "inference", "folded inference", "peak memory")


def build(network: str, arm: str) -> nn.Module:
    torch.manual_seed(0)
    model = NETWORKS[network][0]()
    if arm == "plain":
        return model
    if arm == "base phase":
        thaw_base(convert_to_aanet(model))
        return model
    return convert_to_aanet(model, blocks=arm.split("+"))


def data(network: str) -> tuple[Tensor, Tensor]:
    shape = NETWORKS[network][1]
    return torch.randn(shape), torch.randint(50, shape[:1])


def training_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(parameter_groups(model, 1e-3, 5e-4), momentum=0.9)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def inference(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def step() -> None:
        model.eval()
        with torch.inference_mode():
            model(x)

    return step


def alpha_update(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    bilevel = BilevelStrategy(model, base_phase=False)
    bilevel.begin_phase()
    return lambda: (bilevel.after_epoch([(x, y)]), None)[1]


def actions(network: str, arm: str) -> dict[str, Callable[[], None]]:
    model, (x, y) = build(network, arm), data(network)
    result = {"training step": training_step(model, x, y), "inference": inference(model, x)}
    if levels(model) and levels(model)[0].base_frozen:
        result["α update"] = alpha_update(model, x, y)
        result["folded inference"] = inference(fold(model), x)
    return result


def seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def time_ratios(network: str, repeats: int, threads: int) -> dict[tuple[str, str], list[float]]:
    """Per (arm, column): the ratio to the plain network's training step or inference, by repeat."""
    torch.set_num_threads(threads)
    arms = {arm: actions(network, arm) for arm in ARMS}
    ratios: dict[tuple[str, str], list[float]] = {}
    for repeat in tqdm(range(-1, repeats), desc=network):  # the first round warms up
        times = {(a, c): seconds(act) for a, acts in arms.items() for c, act in acts.items()}
        for (arm, column), value in times.items():
            unit = "inference" if "inference" in column else "training step"
            if repeat >= 0:
                ratios.setdefault((arm, column), []).append(value / times["plain", unit])
    return ratios


def _peak_of_a_step(network: str, arm: str, threads: int, connection) -> None:  # type: ignore[no-untyped-def]
    torch.set_num_threads(threads)
    step = training_step(build(network, arm), *data(network))
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is that of the imports
    before = _resident_peak()
    step()
    connection.send(_resident_peak() - before)


def _resident_peak() -> int:
    """In kB, from Linux's account of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def peak_memory(network: str, arm: str, threads: int) -> float:
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_peak_of_a_step, args=(network, arm, threads, send))
    process.start()
    peak = receive.recv()
    process.join()
    return float(peak)


def table(network: str, cells: dict[tuple[str, str], str]) -> str:
    lines = [f"### {network}", "", "| | " + " | ".join(COLUMNS) + " |", "|---" * 6 + "|"]
    for arm in ARMS:
        row = (cells.get((arm, column), "") for column in COLUMNS)
        lines.append(f"| {arm} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="rounds over all arms (15)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument(
        "--allocator",
        choices=["kept", "default"],
        default="kept",
        help="whether memory is kept between steps or, glibc's default, given back (kept)",
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results/speed.md")
    args = parser.parse_args()

    peaks = {
        (network, arm): peak_memory(network, arm, args.threads)
        for network in NETWORKS
        for arm in ARMS
    }
    if args.allocator == "kept":
        keep_memory()
    tables = []
    for network in NETWORKS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            ratios = pool.submit(time_ratios, network, args.repeats, args.threads).result()
        cells = {key: f"{statistics.median(values):.2f}" for key, values in ratios.items()}
        for key, values in ratios.items():
            low, *_, high = statistics.quantiles(values, n=4)
            cells[key] += f" ({low:.2f}–{high:.2f})"
        for arm in ARMS:
            peak = peaks[network, arm] / peaks[network, "plain"]
            cells[arm, "peak memory"] = f"{peak:.2f}"
        tables.append(table(network, cells))
    text = "\n\n".join(
        [
            "# Speed",
            "Ratios to the plain network in the same run: training step and α update to its "
            "training step, inference and folded inference to its inference, peak memory to its "
            "own. Median (quartiles) over interleaved repeats, one batch each.",
            f"`python {' '.join(['benchmarks/speed.py', *sys.argv[1:]])}`: {args.repeats} repeats, "
            f"{args.threads} thread(s), {MEMORY[args.allocator]}, seed 0, "
            f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}, CPU.",
            *tables,
        ]
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
