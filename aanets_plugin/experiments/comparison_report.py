"""The common report of the runs of a comparison: tables, figures, costs and report.html."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aanets_plugin.baselines.method import Method
from aanets_plugin.experiments.accuracy_plot import plot_accuracy
from aanets_plugin.experiments.costs import Measured, costs_csv, costs_table, seconds_of
from aanets_plugin.experiments.report.collect import Finished, read_finished
from aanets_plugin.experiments.report.page import write_page
from aanets_plugin.experiments.results import UPPER_BOUND, write_summary
from aanets_plugin.files import replacing, write_text
from aanets_plugin.plot_style import save


def write_report(
    measured: Sequence[Measured],
    method: Method,
    output: Path,
    folders: Sequence[Path],
    learned: Path,
    command: str,
    notes: Sequence[str],
) -> None:
    """Write the report of the runs in `folders`, and of earlier runs of other seeds in `output`.

    `learned` is the run whose α is shown.
    """
    measured = _with_other_seeds(measured, output, set(folders))
    results, rule = [each.result for each in measured], method.predicts_by
    # Joint training keeps no exemplars and so has no nearest means: plot it by its head.
    shown = [
        replace(result, arm=f"{result.arm}, by head", nearest_mean=result.head)
        if result.arm == UPPER_BOUND and result.by(rule) is None
        else result
        for result in results
    ]
    figure = plot_accuracy(shown, rule=rule, title=method.title)
    save(figure, output / "accuracy.png", ".pdf")
    for alpha in learned.glob("alpha.p*"):  # .png and .pdf
        with replacing(output / alpha.name) as temporary:
            shutil.copyfile(alpha, temporary)
    write_summary(
        output / "summary.md",
        results,
        heading=f"{method.title} with and without AANets",
        command=command,
        notes=notes,
        reported=rule,
    )
    write_page(output)
    write_text(output / "costs.md", costs_table(measured, rule))
    write_text(output / "costs.csv", costs_csv(measured, rule))


def _with_other_seeds(
    measured: Sequence[Measured], output: Path, folders: set[Path]
) -> Sequence[Measured]:
    """Add finished runs in the same folder, from earlier, that differ from these by seed alone."""
    runs, _ = read_finished(output)
    same = [_but_seed(run) for run in runs if run.folder in folders]
    costs = {each.result.arm: each.cost for each in measured}
    others = [
        Measured(run.result, costs[run.result.arm], seconds_of(run.folder))
        for run in runs
        if run.folder not in folders and _but_seed(run) in same and run.result.arm in costs
    ]
    return sorted([*measured, *others], key=lambda each: each.result.seed) if others else measured


def _but_seed(run: Finished) -> Any:
    return run.result.arm, run.result.order, {**run.config, "seed": None, "source": None}
