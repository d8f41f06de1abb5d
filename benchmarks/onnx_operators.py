"""Where ONNX Runtime spends the time of an exported network, by its own profiler.

python benchmarks/onnx_operators.py

Per operator the median over runs, summed by type. GFLOP/s counts two operations per multiply-add of
a convolution, those with the zeros of the padding included. Prints the table that is in
benchmarks/inference.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import torch
from inference import ARMS, images, session, write_models
from speed import NETWORKS

COLUMNS = ("time, ms", "convolutions", "layout", "α: Mul, Add", "rest", "convolutions, GFLOP/s")
GROUPS = {
    "Conv": "convolutions",
    "ReorderInput": "layout",
    "ReorderOutput": "layout",
    "Mul": "α: Mul, Add",
    "Add": "α: Mul, Add",
}


def operators(file: Path, network: str, repeats: int, threads: int) -> list[tuple[str, float, int]]:
    """Per operator of the optimized graph: its type, its time in s and its multiply-adds."""
    prefix = str(file.with_suffix(""))
    run = session(file, threads, enable_profiling=True, profile_file_prefix=prefix)
    x = images(network).numpy()
    for _ in range(repeats):
        run.run(None, {"images": x})
    times = defaultdict(list)
    for event in json.loads(Path(run.end_profiling()).read_text()):
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            args = event["args"]
            work = 0
            if args["op_name"] == "Conv":
                output, kernel = args["output_type_shape"][0], args["input_type_shape"][1]
                work = math.prod(output["float"]) * math.prod(kernel["float"][1:])
            times[event["name"], args["op_name"], work].append(event["dur"] / 1e6)
    return [(kind, statistics.median(t), work) for (_, kind, work), t in times.items()]


def row(measured: list[tuple[str, float, int]]) -> str:
    groups: Counter[str] = Counter()
    for kind, time, _ in measured:
        groups[GROUPS.get(kind, "rest")] += time  # type: ignore[assignment]
    total, work = sum(groups.values()), sum(work for *_, work in measured)
    cells = [f"{1e3 * total:.1f}", *(f"{groups[name] / total:.1%}" for name in COLUMNS[1:5])]
    return " | ".join([*cells, f"{2e-9 * work / groups['convolutions']:.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="runs of each network (15)")
    parser.add_argument("--threads", type=int, default=1, help="of torch and ONNX Runtime (1)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|", sep="\n")
    for network in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            write_models(network, Path(folder))
            for arm in ARMS:
                file = Path(folder, f"{arm}.onnx")
                measured = operators(file, network, args.repeats, args.threads)
                print(f"| {network}, {arm} | {row(measured)} |")


if __name__ == "__main__":
    main()
