"""The plot of α. matplotlib is imported only when it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from os import PathLike
from typing import TYPE_CHECKING, Any

from aanets_plugin.errors import ConfigurationError

if TYPE_CHECKING:
    from aanets_plugin.bilevel import AlphaRecord

PLASTIC, STABLE = "#ed7852", "#3379b5"
"""The colours of the paper's figures."""


def plot_alpha(
    history: Sequence[AlphaRecord],
    path: str | PathLike[str] | None = None,
    *,
    smoothing: float = 0.0,
) -> Any:
    """Plot α over the updates of all phases, one panel per level (the paper's Figure 4).

    `history` is that of a BilevelStrategy. Vertical lines mark the starts of phases. `smoothing` is
    the weight of the previous value in a running mean, in [0, 1); the paper uses 0.8. Returns the
    matplotlib figure, which is also saved to `path`, if given.
    """
    if not history:
        raise ConfigurationError(
            "history is empty: α has not been updated yet. Train a phase first."
        )
    if not 0 <= smoothing < 1:
        raise ConfigurationError(f"smoothing={smoothing}: must be ≥ 0 and < 1.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(record.level for record in history))
    figure = Figure(figsize=(3.2 * len(names), 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for name, axes in zip(names, panels, strict=True):
        records = [record for record in history if record.level == name]
        branches = len(records[0].weights)
        for branch in range(branches):
            color, label = _style(branch, branches)
            weights = [record.weights[branch] for record in records]
            values = list(accumulate(weights, lambda a, b: smoothing * a + (1 - smoothing) * b))
            axes.plot(range(1, len(values) + 1), values, color=color, label=label)
        for i in range(1, len(records)):
            if records[i].phase != records[i - 1].phase:
                axes.axvline(i + 0.5, color="0.8", linewidth=0.8, zorder=0)
        axes.set(title=name, xlabel="update", ylim=(-0.03, 1.03))
    panels[0].set_ylabel("aggregation weight α")
    panels[0].legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _style(branch: int, branches: int) -> tuple[str | None, str]:
    if branch == 0:
        return PLASTIC, r"plastic $\alpha_\eta$"
    if branch == branches - 1:
        return STABLE, r"stable $\alpha_\phi$"
    return None, f"branch {branch}"
