"""Write report.html of a run or a comparison anew.

    aanets report runs/lucir

FOLDER is the folder of a comparison, or of one run in it. The page needs no network: it has the
tables, the accuracy by phase, what was forgotten when, α, what each branch knows, and the cost.
"""

import argparse
from pathlib import Path

from aanets_plugin.experiments.report.page import write_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of this command."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of runs")


def execute(args: argparse.Namespace) -> None:
    """Write `report.html` and print its path."""
    print(write_page(args.folder))
