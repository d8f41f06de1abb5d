"""Compare a method with and without AANets on a dataset.

    aanets run lucir
    aanets run lucir --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

Prints tables of the accuracy with and without AANets,
from the same first phase, and draws the accuracy (accuracy.png) and the aggregation weights α of
each level (alpha.png). On several GPUs or machines: accelerate launch -m aanets_plugin.experiments
run METHOD …
"""

import argparse
import shlex
import sys

from aanets_plugin.baselines import METHODS
from aanets_plugin.baselines.method import Method
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.cli import compare_as_asked
from aanets_plugin.experiments.options import add_options
from aanets_plugin.experiments.saved_config import SavedConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.usage = "aanets run METHOD [options]"
    names = ", ".join(METHODS)
    parser.add_argument(
        "method",
        nargs="?",
        choices=METHODS,
        metavar="METHOD",
        help=f"{names}; with --config, default: the method of the run with its hyperparameters",
    )
    add_options(parser)


def execute(args: argparse.Namespace) -> None:
    """Do the runs of a comparison."""
    compare_as_asked(_method(args), args, shlex.join(["aanets", *sys.argv[1:]]))


def _method(args: argparse.Namespace) -> Method:
    saved = None if args.config is None else SavedConfig.read(args.config).method
    if saved is not None and args.method in (None, saved.name):
        return saved
    if args.method is None:
        raise ConfigurationError(f"METHOD is missing. Pass one of {', '.join(METHODS)}.")
    return METHODS[args.method]()
