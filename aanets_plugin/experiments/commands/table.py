"""Do the runs of one of the paper's tables and write it with the paper's numbers beside ours.

    aanets table 1 --dataset digits --seeds 0 1
    aanets table 2 --dataset cifar100 --data FOLDER --rows lucir-plain lucir-learned --phases 5
    aanets table s3 --dataset cifar100 --data FOLDER --scale small --dry-run

NAME is 1 (ablation), 2 (four methods), s1 (equal phases), s2 (strict memory) or s3 (more
ablation). Runs that are in the output folder are not done again: start the same command again
after it was stopped, or to add rows, phases and seeds. The tables of a dataset share their runs.
Writes the table as Markdown, CSV and LaTeX after each run.
"""

import argparse

from aanets_plugin.experiments.many import do_as_asked
from aanets_plugin.experiments.paper.grids import TABLES
from aanets_plugin.experiments.paper.options import add_grid_options, grid_from
from aanets_plugin.experiments.paper.write import write_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("name", choices=TABLES, metavar="NAME", help=", ".join(TABLES))
    group = add_grid_options(parser)
    group.add_argument(
        "--rows", nargs="+", metavar="ROW", help="only these rows, as the table names them"
    )


def execute(args: argparse.Namespace) -> None:
    """Do the runs that are missing, then write and print the table."""
    table = TABLES[args.name]
    table.check(args.dataset)
    grid = grid_from(args, table.chosen(args.rows))
    outcome = do_as_asked(
        args,
        grid.plans,
        grid.output,
        check=grid.check,
        after=lambda: write_table(grid, table),
    )
    files = write_table(grid, table)
    print(files[0].read_text(encoding="utf-8"))
    print(*files, sep="\n")
    raise SystemExit(1 if outcome.failed else 0)
