"""Run a method with several memories, and give the area under its accuracy-memory curve.

    aanets curve memory lucir --dataset cifar100 --data FOLDER --scale small --budgets 5 10 20 40

The plain network and AANets are run with each number of exemplars per class. Their curves are
compared at equal memory, which counts parameters and exemplars. Runs that are in the output folder
are not done again, also those of `aanets table`. Writes the points and the areas as Markdown and
CSV.
"""

import argparse
from functools import partial

from aanets_plugin.baselines import METHODS
from aanets_plugin.experiments.curve import ARMS, MemoryCurve
from aanets_plugin.experiments.many import do_as_asked
from aanets_plugin.experiments.paper.options import add_grid_options, grid_from
from aanets_plugin.experiments.paper.scales import scale_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("what", choices=("memory",), help="memory: exemplars per class")
    parser.add_argument("method", choices=METHODS, metavar="METHOD", help=", ".join(METHODS))
    group = add_grid_options(parser)
    group.add_argument(
        "--budgets",
        type=int,
        nargs="+",
        default=[5, 10, 20],
        metavar="N",
        help="numbers of exemplars per class; default: 5 10 20",
    )
    group.add_argument(
        "--arms",
        nargs="+",
        choices=ARMS,
        default=["plain", "learned"],
        help="default: plain learned",
    )


def execute(args: argparse.Namespace) -> None:
    """Do the runs that are missing, then write and print the curve."""
    smallest = min(scale_of(args.dataset, args.scale).phases)
    grid = grid_from(args, [], [smallest])
    curve = MemoryCurve(grid, args.method, args.arms, args.budgets)
    check = partial(grid.check, curve.plans)
    outcome = do_as_asked(args, curve.plans, grid.output, check=check)
    if curve.points():
        files = curve.write()
        print(files[0].read_text(encoding="utf-8"))
        print(*files, sep="\n")
    raise SystemExit(1 if outcome.failed else 0)
