"""The options that the commands `table` and `figure` share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aanets_plugin.experiments.many import add_many_options
from aanets_plugin.experiments.paper.cells import Grid
from aanets_plugin.experiments.paper.grids import Row
from aanets_plugin.experiments.paper.scales import SCALES, scale_of

DATASETS = ("cifar100", "imagenet-subset", "imagenet", "digits")


def add_grid_options(parser: argparse.ArgumentParser) -> Any:
    """Add the options, and return the group of those that choose runs."""
    group = parser.add_argument_group("runs")
    add = group.add_argument
    add("--dataset", choices=DATASETS, default="digits", help="default: %(default)s")
    add("--data", type=Path, metavar="FOLDER", help="folder of the dataset; not for digits")
    add(
        "--scale",
        choices=SCALES,
        help="paper: the paper's setting (the default where the paper has the dataset); small: a "
        "short one, on CIFAR-100 that of benchmarks/accuracy.md",
    )
    add(
        "--phases",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of phases after the first one; default: 5 10 25, on digits 2 5",
    )
    add("--seeds", type=int, nargs="+", default=[0], metavar="S", help="default: 0")
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the runs and tables; default: runs/paper/DATASET-SCALE",
    )
    add_many_options(parser.add_argument_group("many runs"))
    return group


def grid_from(
    args: argparse.Namespace, rows: Sequence[Row], phases: Sequence[int] | None = None
) -> Grid:
    """The runs that the options ask for. `phases`: the default of N."""
    scale = scale_of(args.dataset, args.scale)
    output = args.output or Path("runs") / "paper" / f"{scale.dataset}-{scale.name}"
    return Grid(
        scale,
        rows,
        args.phases or phases or scale.phases,
        args.seeds,
        output=output,
        data=args.data,
        device=args.device,
    )
