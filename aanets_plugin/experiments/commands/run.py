"""Compare a method with and without AANets on a dataset.

    aanets run lucir
    aanets run lucir --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

METHOD is icarl, lucir, podnet or mnemonics. Prints tables of the accuracy with and without AANets,
from the same first phase, and draws the accuracy (accuracy.png) and the aggregation weights α of
each level (alpha.png). On several GPUs or machines: accelerate launch -m aanets_plugin.experiments
run METHOD …
"""

import argparse
import shlex
import sys

from aanets_plugin.baselines import METHODS
from aanets_plugin.experiments.cli import compare_as_asked
from aanets_plugin.experiments.options import add_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "aanets run METHOD [options]"
    parser.add_argument("method", choices=METHODS, metavar="METHOD", help=", ".join(METHODS))
    add_options(parser)


def execute(args: argparse.Namespace) -> None:
    compare_as_asked(METHODS[args.method](), args, shlex.join(["aanets", *sys.argv[1:]]))
