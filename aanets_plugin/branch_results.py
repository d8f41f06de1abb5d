"""BranchReport: the result of `branch_report`, as a table and as a figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from aanets_plugin.plot_style import INK, OTHERS, PLASTIC, STABLE, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class BranchRow:
    """The measurements for one choice of α."""

    name: str
    """Such as "α as learned", "plastic alone" or "plastic alone in layer1"."""
    branch: str | None
    """The branch that is used alone; None for α as learned."""
    level: str | None
    """The level in which it is used alone; None for all levels."""
    accuracy: float
    """In per cent, on all samples."""
    loss: float
    """Mean cross-entropy."""
    by_phase: tuple[float | None, ...]
    """Accuracy on the classes of each phase; None if there is no sample of them."""


@dataclasses.dataclass(frozen=True)
class BranchReport:
    """The result of `branch_report`. `str(report)` is a table."""

    rows: tuple[BranchRow, ...]
    shares: Mapping[str, tuple[float, ...]]
    """For each level, the share of each branch in the norm of the aggregated output."""
    branches: tuple[str, ...]
    """The names of the branches."""

    def __str__(self) -> str:
        """Return two Markdown tables: accuracies, and the shares of the branches."""
        phases = [f"phase {phase}" for phase in range(len(self.rows[0].by_phase))]
        accuracies = [
            [row.name, f"{row.accuracy:.2f}", f"{row.loss:.3f}", *map(_number, row.by_phase)]
            for row in self.rows
        ]
        shares = [
            [level, *(f"{100 * share:.1f}" for share in shares)]
            for level, shares in self.shares.items()
        ]
        share_names = [f"{branch} (%)" for branch in self.branches]
        return (
            _table(["branches", "accuracy (%)", "loss", *phases], accuracies)
            + "\n\nShare of each branch in the norm of a level's output:\n\n"
            + _table(["level", *share_names], shares)
        )

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the accuracy by phase for each branch alone, and the shares of the branches.

        Returns the matplotlib figure, which is also saved to `path`, if given.
        """
        figure, (left, right) = new_figure(8.4, 3.2, columns=2, width_ratios=(3, 2))
        rows = [row for row in self.rows if row.level is None]
        count = len(rows[0].by_phase)
        width = 0.8 / len(rows)
        for index, row in enumerate(rows):
            places = [phase + (index - (len(rows) - 1) / 2) * width for phase in range(count)]
            heights = [0.0 if value is None else value for value in row.by_phase]
            left.bar(places, heights, width, color=self._color(row.branch), label=row.name)
        left.set_xticks(range(count), [str(phase) for phase in range(count)])
        left.set(xlabel="classes that came in phase", ylabel="accuracy (%)")
        left.grid(visible=False, axis="x")
        names = list(self.shares)
        start = [0.0] * len(names)
        for index, branch in enumerate(self.branches):
            values = [100 * self.shares[name][index] for name in names]
            right.barh(names, values, left=start, color=self._color(branch))
            start = [a + b for a, b in zip(start, values, strict=True)]
        right.invert_yaxis()
        right.set(xlabel="share in the output's norm (%)", xlim=(0, 100))
        right.grid(visible=False)
        figure.legend(loc="outside lower center", ncols=len(rows), frameon=False)
        if path is not None:
            save(figure, path)
        return figure

    def _color(self, branch: str | None) -> str:
        if branch is None:
            return INK
        inner = OTHERS[self.branches.index(branch) % len(OTHERS)]
        return {self.branches[0]: PLASTIC, self.branches[-1]: STABLE}.get(branch, inner)


def branch_names(count: int) -> tuple[str, ...]:
    """Return the names of the branches of a level, from the plastic to the stable one."""
    if count == 1:
        return ("plastic",)
    return ("plastic", *(f"branch {index}" for index in range(1, count - 1)), "stable")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
