"""The figures of the paper that runs are needed for: α over the phases, and accuracy curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from aanets_plugin.alpha_history import AlphaRecord
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.accuracy_plot import plot_accuracy
from aanets_plugin.experiments.paper.cells import Grid, method_of
from aanets_plugin.experiments.paper.grids import TABLE_1, TABLE_2, Row
from aanets_plugin.experiments.paper.scales import Scale
from aanets_plugin.experiments.results import UPPER_BOUND, Result
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.plot_style import MARKERS, OTHERS, save
from aanets_plugin.plots import plot_alpha

SMOOTHING = 0.8
"""That of the paper's curves of α."""


@dataclass(frozen=True)
class Figure:
    """A figure of the paper; one picture for each N."""

    name: str
    title: str
    rows: tuple[Row, ...]
    datasets: tuple[str, ...]
    middle: bool | None = None
    """True: only the middle value of N. False: all others. None: all."""

    def phases(self, scale: Scale) -> list[int]:
        """The values of N that the paper shows."""
        middle = scale.phases[len(scale.phases) // 2]
        return [n for n in scale.phases if self.middle is None or (n == middle) == self.middle]

    def check(self, dataset: str) -> None:
        """Refuse a dataset for which the paper has no such figure."""
        if dataset not in self.datasets:
            raise ConfigurationError(
                f"figure {self.name}: the paper has none for {dataset}. Use one of "
                f"{', '.join(self.datasets)}."
            )


_ALL = ("cifar100", "imagenet-subset", "imagenet", "digits")
_LEARNED = tuple(row for row in TABLE_1.rows if row.variant == "learned")
_CURVES = (
    *(row for row in TABLE_2.rows if row.method is not None),
    Row("joint", UPPER_BOUND, "joint"),
)
FIGURES = {
    figure.name: figure
    for figure in (
        Figure("4", "α of LUCIR with AANets", _LEARNED, _ALL, middle=True),
        Figure("s2", "Accuracy by phase", _CURVES, _ALL),
        Figure("s3", "α of LUCIR with AANets", _LEARNED, ("cifar100", "digits"), middle=False),
        Figure("s4", "α of LUCIR with AANets", _LEARNED, ("imagenet-subset",), middle=False),
    )
}


def draw(grid: Grid, figure: Figure) -> list[Path]:
    """Draw a picture for each N from the runs that are finished, and return their names."""
    files = []
    for phases in grid.phases:
        file = grid.output / f"figure{figure.name}-N{phases}.png"
        drawn = (
            _draw_accuracy(grid, phases)
            if figure.rows is _CURVES
            else _draw_alpha(grid, figure.rows[0], phases)
        )
        if drawn is not None:
            save(drawn, file, ".pdf")
            files += [file, file.with_suffix(".pdf")]
    return files


def _draw_alpha(grid: Grid, row: Row, phases: int) -> Any:
    runs = [folder.alpha() for _, folder in _finished(grid, row, phases)]
    return plot_alpha(mean_alpha(runs), smoothing=SMOOTHING) if runs else None


def mean_alpha(runs: Sequence[Sequence[AlphaRecord]]) -> list[AlphaRecord]:
    """The mean over seeds of α after each update."""
    means = []
    for records in zip(*runs, strict=True):
        weights = zip(*(record.weights for record in records), strict=True)
        first = records[0]
        mean = tuple(fmean(values) for values in weights)
        means.append(AlphaRecord(first.phase, first.epoch, first.level, mean, None))
    return means


def _draw_accuracy(grid: Grid, phases: int) -> Any:
    results = []
    for row in grid.rows:
        assert row.method is not None
        rule = method_of(row.method).predicts_by
        for seed, folder in _finished(grid, row, phases):
            rows = folder.rows()
            classes = [found["classes"] for found in rows]
            results.append(Result(row.label, seed, classes, [found[rule] for found in rows]))
    if not results:
        return None
    measured = "By the rule that the authors of each method report"
    title = f"{grid.scale.dataset}, N={phases}"
    return plot_accuracy(results, title=title, measured=measured, styles=_styles(grid.rows))


def _styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A colour and a marker for each method; plain networks are dashed and their markers empty."""
    styles: dict[str, dict[str, Any]] = {UPPER_BOUND: {"linestyle": ":"}}
    methods = list(dict.fromkeys(row.method for row in rows if row.label != UPPER_BOUND))
    for row in rows:
        if row.method in methods:
            place = methods.index(row.method)
            styles[row.label] = {"color": OTHERS[2 + place], "marker": MARKERS[place]}
            if row.variant == "plain":
                styles[row.label] |= {"linestyle": "--", "markerfacecolor": "white"}
    return styles


def _finished(grid: Grid, row: Row, phases: int) -> list[tuple[int, RunFolder]]:
    """The seeds whose run is finished, and their folders."""
    found = []
    for seed in grid.seeds:
        plan = grid.plan(row, phases, seed)
        folder = RunFolder(grid.output / plan.name)
        if len(folder.rows()) == len(plan.increments):
            found.append((seed, folder))
    return found
