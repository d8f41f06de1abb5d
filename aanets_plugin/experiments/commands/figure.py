"""Do the runs of one of the paper's figures and draw it.

    aanets figure 4 --dataset digits
    aanets figure s2 --dataset cifar100 --data FOLDER --seeds 0 1 2
    aanets figure 5 --run runs/lucir/learned-0

NAME is 4 (α of each level over the phases; s3 and s4: for other numbers of phases), s2 (accuracy
curves of four methods with and without AANets, and joint training) or 5 (Grad-CAM maps of each
branch; with the networks of all phases for a run with --keep-phases). Runs that are in the output
folder are not done again, also those of `aanets table`. Draws a picture for each number of phases.
"""

import argparse
from pathlib import Path

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.grad_cam_figures import draw_run
from aanets_plugin.experiments.many import do_as_asked
from aanets_plugin.experiments.paper.figures import FIGURES, draw
from aanets_plugin.experiments.paper.options import add_grid_options, grid_from
from aanets_plugin.experiments.paper.scales import scale_of

GRAD_CAM = "5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    names = sorted([*FIGURES, GRAD_CAM])
    parser.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    group = parser.add_argument_group("figure 5")
    group.add_argument("--run", type=Path, metavar="FOLDER", help="a finished run with AANets")
    group.add_argument("--level", help="name of a level, such as layer3; default: the last one")
    add_grid_options(parser)


def execute(args: argparse.Namespace) -> None:
    """Do the runs that are missing and draw the figure, or Grad-CAM maps of a run."""
    if (args.name == GRAD_CAM) != (args.run is not None):
        raise ConfigurationError(
            f"figure {args.name}: --run is needed for figure {GRAD_CAM}, and for no other one. "
            f"Name the folder of a finished run with AANets, such as runs/lucir/learned-0."
        )
    if args.name == GRAD_CAM:
        print(*draw_run(args.run, args.level or -1), sep="\n")
        return
    figure = FIGURES[args.name]
    figure.check(args.dataset)
    grid = grid_from(args, figure.rows, figure.phases(scale_of(args.dataset, args.scale)))
    outcome = do_as_asked(args, grid.plans, grid.output, check=grid.check)
    print(*draw(grid, figure), sep="\n")
    raise SystemExit(1 if outcome.failed else 0)
