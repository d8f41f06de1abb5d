"""The accuracy-memory curve: runs with several numbers of exemplars, and the area under it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from aanets_plugin.budget import MB
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.costs import cost_of, seconds_of
from aanets_plugin.experiments.paper.cells import Grid
from aanets_plugin.experiments.paper.grids import Row
from aanets_plugin.experiments.plan import Plan
from aanets_plugin.experiments.results import markdown_table
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.variants import VARIANTS
from aanets_plugin.files import write_text

ARMS = ("plain", "learned", "fixed", "all_all", "all_frozen", "scaling_frozen")
"""The variants that a curve can have."""


@dataclass(frozen=True)
class Point:
    """The runs of an arm with one number of exemplars."""

    arm: str
    exemplars: int
    """Of each class."""
    memory: int
    """Bytes of parameters and exemplars."""
    flops: int
    parameters: int
    average: list[float]
    """Average incremental accuracy by seed."""
    last: list[float]
    """Accuracy after the last phase by seed."""
    minutes: list[float]


class MemoryCurve:
    """The runs of some arms with some numbers of exemplars per class, on one grid."""

    def __init__(
        self, grid: Grid, method: str, arms: Sequence[str], budgets: Sequence[int]
    ) -> None:
        if len(set(budgets)) < 2 or min(budgets) < 1:
            raise ConfigurationError(
                f"budgets {' '.join(map(str, budgets))}: must be two or more numbers of exemplars "
                f"per class, each ≥ 1."
            )
        if len(grid.phases) != 1:
            raise ConfigurationError(
                f"phases {' '.join(map(str, grid.phases))}: a curve has one number of phases."
            )
        self.grid, self.arms, self.budgets = grid, list(arms), sorted(set(budgets))
        self.rows = {arm: Row(arm, VARIANTS[arm].label, method, arm) for arm in arms}

    @property
    def plans(self) -> list[Plan]:
        """All runs, the smallest memory first."""
        return [
            self.plan(arm, budget, seed)
            for seed in self.grid.seeds
            for budget in self.budgets
            for arm in self.arms
        ]

    def plan(self, arm: str, budget: int, seed: int) -> Plan:
        """A run. With the exemplars of the scale it is that of the tables."""
        plan = self.grid.plan(self.rows[arm], self.grid.phases[0], seed)
        if budget == self.grid.scale.exemplars:
            return plan
        memory = replace(plan.settings.memory, per_class=budget)
        return replace(
            plan,
            name=f"{plan.name}-m{budget}",
            settings=replace(plan.settings, memory=memory),
        )

    def points(self) -> list[Point]:
        """The points whose runs are finished, by arm and memory."""
        found = []
        for arm in self.arms:
            for budget in self.budgets:
                plans = [self.plan(arm, budget, seed) for seed in self.grid.seeds]
                rule = plans[0].settings.method.predicts_by
                data = self.grid.data
                cost = cost_of(plans[0].settings, data.classes, data.input_shape)
                last, minutes = [], []
                for plan in plans:
                    folder = RunFolder(self.grid.output / plan.name)
                    rows = folder.rows()
                    if len(rows) == len(plan.increments):
                        last.append(rows[-1][rule])
                        minutes.append((seconds_of(folder.path) or 0.0) / 60)
                if last:
                    found.append(
                        Point(
                            VARIANTS[arm].label,
                            budget,
                            cost.memory,
                            cost.flops,
                            cost.parameters,
                            [row["average"] for row in last],
                            [row["all"] for row in last],
                            minutes,
                        )
                    )
        return found

    def write(self) -> list[Path]:
        """Write the table as Markdown and CSV, and return the names of the files."""
        base = self.grid.output / f"memory-{next(iter(self.rows.values())).method}"
        points = self.points()
        texts = {".md": as_markdown(points), ".csv": as_csv(points)}
        for suffix, text in texts.items():
            write_text(base.with_name(base.name + suffix), text)
        return [base.with_name(base.name + suffix) for suffix in texts]


def area(x: Sequence[float], y: Sequence[float], low: float, high: float) -> float | None:
    """The mean height of a curve of straight lines from `low` to `high`.

    That is the area under it, divided by the distance. None if the distance is zero or negative.

    Examples:
        >>> area([1, 3], [50, 70], 1, 3), area([1, 3], [50, 70], 2, 3)
        (60.0, 65.0)
    """
    if high <= low:
        return None
    inner = [value for value in x if low < value < high]
    places = np.array([low, *inner, high])
    heights = np.interp(places, x, y)
    widths = np.diff(places)
    return float(((heights[1:] + heights[:-1]) / 2 * widths).sum() / (high - low))


def areas(points: Sequence[Point]) -> dict[str, tuple[float | None, float | None]]:
    """The `area` of the average and of the last accuracy over the memory in MB, by arm.

    The limits are those between which all arms have a curve.
    """
    arms = list(dict.fromkeys(point.arm for point in points))
    of = {arm: [point for point in points if point.arm == arm] for arm in arms}
    low = max(min(point.memory for point in own) for own in of.values())
    high = min(max(point.memory for point in own) for own in of.values())
    found = {}
    for arm, own in of.items():
        x = [point.memory for point in own]
        average = area(x, [fmean(point.average) for point in own], low, high)
        found[arm] = average, area(x, [fmean(point.last) for point in own], low, high)
    return found


def as_markdown(points: Sequence[Point]) -> str:
    """The points, and the area under each curve."""
    rows = [
        [
            point.arm,
            str(point.exemplars),
            f"{point.memory / MB:.2f}",
            f"{point.parameters / 1000:.0f}K",
            f"{point.flops / 1e6:.1f}M",
            f"{fmean(point.minutes):.1f}",
            f"{fmean(point.average):.2f}",
            f"{fmean(point.last):.2f}",
            str(len(point.average)),
        ]
        for point in points
    ]
    header = ["arm", "exemplars per class", "MB", "parameters", "FLOPs", "minutes"]
    table = markdown_table([*header, "average", "last phase", "seeds"], rows)
    under = markdown_table(
        ["arm", "", "area, average", "area, last phase"],
        [
            [arm, "", *("no common memory" if value is None else f"{value:.2f}" for value in pair)]
            for arm, pair in areas(points).items()
        ],
    )
    return (
        f"{table}\n\nAccuracy in per cent, mean over seeds; MB: parameters and exemplars after the "
        f"last phase; minutes: wall time of all phases but the first.\n\n{under}\n\nArea under the "
        f"accuracy-memory curve, divided by its width: the mean accuracy over the memory that all "
        f"arms have in common.\n"
    )


def as_csv(points: Sequence[Point]) -> str:
    """A line for each point and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("arm", "exemplars", "memory", "parameters", "flops")
    writer.writerow([*names, "average", "last", "minutes"])
    for point in points:
        for values in zip(point.average, point.last, point.minutes, strict=True):
            writer.writerow([*(getattr(point, name) for name in names), *values])
    return text.getvalue()
