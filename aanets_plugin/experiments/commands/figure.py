"""Do the runs of one of the paper's figures and draw it.

    aanets figure 4 --dataset digits
    aanets figure s2 --dataset cifar100 --data FOLDER --seeds 0 1 2

NAME is 4 (α of each level over the phases; s3 and s4: for other numbers of phases) or s2 (accuracy
curves of four methods with and without AANets, and joint training). Runs that are in the output
folder are not done again, also those of `aanets table`. Draws a picture for each number of phases.
"""

import argparse

from aanets_plugin.experiments.many import do_as_asked
from aanets_plugin.experiments.paper.figures import FIGURES, draw
from aanets_plugin.experiments.paper.options import add_grid_options, grid_from
from aanets_plugin.experiments.paper.scales import scale_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=FIGURES, metavar="NAME", help=", ".join(FIGURES))
    add_grid_options(parser)


def execute(args: argparse.Namespace) -> None:
    figure = FIGURES[args.name]
    figure.check(args.dataset)
    grid = grid_from(args, figure.rows, figure.phases(scale_of(args.dataset, args.scale)))
    outcome = do_as_asked(args, grid.plans, grid.output, check=grid.check)
    print(*draw(grid, figure), sep="\n")
    raise SystemExit(1 if outcome.failed else 0)
