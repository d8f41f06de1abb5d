"""plot_alpha: the course of α over the phases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from os import PathLike
from typing import TYPE_CHECKING, Any

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.plot_style import (
    INK,
    OTHERS,
    PLASTIC,
    STABLE,
    labelled_ticks,
    new_figure,
    save,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from aanets_plugin.alpha_history import AlphaRecord

MIN_RANGE = 0.1
"""The y axis covers at least this much of α."""


def plot_alpha(
    history: Sequence[AlphaRecord],
    path: str | PathLike[str] | None = None,
    *,
    smoothing: float = 0.0,
    initial: Sequence[float] | None = None,
) -> Figure:
    """Plot α over the phases, one panel per level (the paper's Figure 4).

    With two branches only the weight of the plastic one is drawn, since that of the stable one is
    the rest to 1. Vertical lines separate the phases, whose numbers are below the axis. Returns the
    matplotlib figure.

    Args:
        history: The history of a `BilevelStrategy`.
        path: If given, the figure is saved there. The suffix tells the format: .png, .pdf or .svg.
        smoothing: The weight of the previous value in a running mean, in [0, 1). The paper uses
            0.8.
        initial: α before the first update, where the curves start. Default: equal weights.
    """
    if not isinstance(history, (list, tuple)) or not all(
        hasattr(record, "weights") for record in history
    ):
        raise ConfigurationError(
            f"history={history!r:.80}: must be the history of a BilevelStrategy, a list of records."
        )
    if not history:
        raise ConfigurationError(
            "history is empty: α has not been updated yet. Train a phase first."
        )
    if not 0 <= smoothing < 1:
        raise ConfigurationError(f"smoothing={smoothing}: must be ≥ 0 and < 1.")
    branches = len(history[0].weights)
    start = tuple(initial) if initial is not None else (1 / branches,) * branches
    if len(start) != branches:
        raise ConfigurationError(
            f"initial={start}: must have one weight for each of the {branches} branches."
        )
    names = list(dict.fromkeys(record.level for record in history))
    figure, panels = new_figure(3.2 * len(names), 2.8, columns=len(names), sharey=True)
    drawn = range(1 if branches == 2 else branches)
    for name, axes in zip(names, panels, strict=True):
        records = [record for record in history if record.level == name]
        for branch in drawn:
            weights = [start[branch], *(record.weights[branch] for record in records)]
            values = list(accumulate(weights, lambda a, b: smoothing * a + (1 - smoothing) * b))
            color, label = _style(branch, branches)
            axes.plot(range(len(values)), values, color=color, label=label)
        for level in {start[branch] for branch in drawn}:
            axes.axhline(level, color=INK, linewidth=0.8, linestyle=":", zorder=0)
        _number_phases(axes, [record.phase for record in records])
        axes.set(title=name, xlabel="phase")
    low, high = panels[0].get_ylim()
    spare = max(0.0, MIN_RANGE - (high - low)) / 2
    panels[0].set_ylim(max(-0.02, low - spare), min(1.02, high + spare))
    if branches == 2:
        panels[0].set_ylabel(r"weight of the plastic branch, $\alpha_\eta$")
    else:
        panels[0].set_ylabel(r"aggregation weight $\alpha$")
        panels[0].legend()
    if path is not None:
        save(figure, path)
    return figure


def _number_phases(axes: Any, phases: Sequence[int]) -> None:
    """Put a line between phases and the number of each phase below its middle."""
    middles, end = {}, 0
    for phase, updates in groupby(phases):
        first, end = end + 1, end + len(list(updates))
        middles[phase] = (first + end) / 2
        if first > 1:
            axes.axvline(first - 0.5, color="0.8", linewidth=0.8, zorder=0)
    shown = labelled_ticks(list(middles))
    axes.set_xticks([middles[phase] for phase in shown], [str(phase) for phase in shown])
    axes.grid(visible=False, axis="x")


def _style(branch: int, branches: int) -> tuple[str, str]:
    if branch == 0:
        return PLASTIC, r"plastic $\alpha_\eta$"
    if branch == branches - 1:
        return STABLE, r"stable $\alpha_\phi$"
    return OTHERS[(branch - 1) % len(OTHERS)], f"branch {branch}"
