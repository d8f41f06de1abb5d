"""main: the command line of a script that compares a method with and without AANets."""

import argparse
import copy
import shlex
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from aanets_plugin.baselines.method import Method
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.command import errors_as_messages
from aanets_plugin.experiments.comparison import Comparison, Place
from aanets_plugin.experiments.comparison_request import comparison_from
from aanets_plugin.experiments.launch import do_jobs, launcher_from
from aanets_plugin.experiments.options import make_parser
from aanets_plugin.experiments.queue import Job
from aanets_plugin.experiments.report.collect import read_finished
from aanets_plugin.experiments.report.short import short_text
from aanets_plugin.experiments.results import PLAIN, Result, paired_table, results_table


def main(
    method: Method, argv: Sequence[str] | None = None, *, description: str | None = None
) -> list[Result]:
    """Compare `method` with and without AANets as the command line says, and print the tables.

    Invalid options end the program with a message and exit code 2, before any training. Under
    `accelerate launch` or `torchrun` only the main process prints and writes. `argv` is the command
    line (default: `sys.argv[1:]`), `description` the text at the top of `--help`.
    """
    parser = make_parser(method, description)
    args = parser.parse_args(argv)
    command = shlex.join(["python", sys.argv[0], *(sys.argv[1:] if argv is None else argv)])
    with errors_as_messages(parser):
        return compare_as_asked(method, args, command)


def compare_as_asked(method: Method, args: argparse.Namespace, command: str) -> list[Result]:
    """Run the comparison that the options of `add_options` ask for and print its tables.

    `command` is the command line, to be shown in the summary.
    """
    default = Path("runs") / method.name
    launcher = launcher_from(args, args.output or default)
    if launcher is None and args.threads is not None:
        torch.set_num_threads(args.threads)
    comparison = comparison_from(method, copy.copy(args), command)
    comparison.check()
    output, (about,) = comparison.output, comparison.notes
    is_new_name = not (args.output or args.resume or output == default)
    where = f"{output} ({default} exists)" if is_new_name else str(output)
    comparison.accelerator.print(f"{method.name}: {about}. Results are written to {where}.\n")
    if launcher is None:
        results = comparison.run()
    else:
        jobs = _jobs(comparison, method, args, command)
        outcome = do_jobs(jobs, output, *launcher)
        if outcome.failed:
            print("Add --resume to the same command to do what is missing.", file=sys.stderr)
            raise SystemExit(1)
        results = comparison.read()
    if comparison.accelerator.is_main_process:
        rule = next(iter(comparison.arms.values())).method.predicts_by
        print(results_table(results, reported=rule))
        if len(comparison.arms) > 1:
            print(paired_table(results, PLAIN, reported=rule))
        print((output / "costs.md").read_text(encoding="utf-8"))
        print(textwrap.fill(short_text(read_finished(output)[0], rule), 100), end="\n\n")
        for name in ("accuracy.png", "alpha.png", "summary.md", "costs.csv", "report.html"):
            if (output / name).exists():
                print(output / name)
    return results


def _jobs(
    comparison: Comparison, method: Method, args: argparse.Namespace, command: str
) -> list[Job]:
    """The runs as jobs of other processes, which read the options again."""
    if comparison.accelerator.num_processes > 1:
        raise ConfigurationError(
            f"--jobs: does not go with {comparison.accelerator.num_processes} processes of one "
            f"run. Start aanets without accelerate launch or torchrun, or leave out --jobs."
        )
    own = copy.copy(args)
    own.output, own.resume = comparison.output, True
    jobs = []
    for place in comparison.places:
        folder = comparison.output / place.name
        jobs.append(
            Job(
                place.name,
                folder,
                partial(_do_one, method, own, command, place),
                len(comparison.phases),
                comparison.base_of(place) or folder,
                rule=comparison.arms[place.arm].method.predicts_by,
            )
        )
    return jobs


def _do_one(
    method: Method, args: argparse.Namespace, command: str, place: Place, base: Path | None
) -> None:
    comparison_from(method, args, command).do(place, base)
