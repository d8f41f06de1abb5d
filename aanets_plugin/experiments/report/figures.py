"""The figures of the report that nothing else draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aanets_plugin.experiments.accuracy_plot import arm_colors
from aanets_plugin.plot_style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Matrix = Sequence[Sequence[float | None]]
MAX_NUMBERS = 12
"""Larger matrices are drawn without numbers in their cells."""


def plot_matrices(
    matrices: Mapping[str, Matrix], *, rows: str, columns: str, colors: str = "Greens"
) -> Figure:
    """Draw percentages as a coloured grid for each name; None is left empty."""
    count = len(matrices)
    figure, panels = new_figure(3.4 * count, 3.4, columns=count)
    for panel, (name, matrix) in zip(panels, matrices.items(), strict=True):
        height, width = len(matrix), max(len(row) for row in matrix)
        values = [[_value(row, j) for j in range(width)] for row in matrix]
        panel.pcolormesh(values, cmap=colors, vmin=0, vmax=100, edgecolors="white", linewidth=0.5)
        if max(height, width) <= MAX_NUMBERS:
            for i, row in enumerate(matrix):
                for j, value in enumerate(row):
                    if value is not None:
                        color = "white" if value > 60 else "#22272f"  # not that of the page's text
                        panel.text(
                            j + 0.5, i + 0.5, f"{value:.0f}", ha="center", va="center", color=color
                        )
        panel.set(title=name, xlabel=columns, ylabel=rows, aspect="equal")
        _number(panel, width, height)
        panel.invert_yaxis()
        panel.grid(visible=False)
    return figure


def plot_groups(groups: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """Draw the accuracy on groups of classes as bars, one colour per arm.

    `groups` has, for each arm, the accuracy in per cent by the name of the group.
    """
    colors = arm_colors(list(groups))
    names = list(next(iter(groups.values())))
    figure, (axes,) = new_figure(6.4, 3.0)
    width = 0.8 / len(groups)
    for index, (arm, values) in enumerate(groups.items()):
        places = [i + (index - (len(groups) - 1) / 2) * width for i in range(len(names))]
        heights = [values[name] or 0.0 for name in names]
        bars = axes.bar(places, heights, width, color=colors[arm], label=arm)
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("accuracy (%)")
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _value(row: Sequence[float | None], column: int) -> float:
    value = row[column] if column < len(row) else None
    return float("nan") if value is None else value


def _number(panel: Any, width: int, height: int) -> None:
    step = max(1, (max(width, height) + MAX_NUMBERS - 1) // MAX_NUMBERS)
    panel.set_xticks([i + 0.5 for i in range(0, width, step)], map(str, range(0, width, step)))
    panel.set_yticks([i + 0.5 for i in range(0, height, step)], map(str, range(0, height, step)))
