"""plot_accuracy: accuracy against the number of classes seen. Needs matplotlib when called."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from aanets_plugin.baselines.method import Rule
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.results import (
    PLAIN,
    RULES,
    UPPER_BOUND,
    Result,
    arm_names,
    metrics_of,
)
from aanets_plugin.plots import PLASTIC, STABLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {
    PLAIN: "0.35",
    UPPER_BOUND: "black",
    "AANets, learned α": PLASTIC,
    "AANets, fixed α": STABLE,
}
OTHER_COLORS = ("#4a9d5b", "#8d63b0", "#c9a227", "#c2508f", "#3aa6a6", "#8a5a44")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MAX_TICK_LABELS = 11
"""More do not fit under the axis."""


def plot_accuracy(
    results: Sequence[Result],
    path: str | os.PathLike[str] | None = None,
    *,
    rule: Rule = "head",
    title: str = "",
) -> Figure:
    """Draw the accuracy on all classes seen against their number, one curve per arm.

    A curve is the mean over seeds, the band around it the range over seeds. The legend shows the
    average incremental accuracy. Arms that were not measured by `rule` are left out. Returns the
    matplotlib figure, which is also saved to `path`, if given.
    """
    arms = [arm for arm in arm_names(results) if metrics_of(results, arm, rule)]
    if not arms:
        raise ConfigurationError(
            f"rule={rule!r}: no result was measured by this rule, so there is nothing to plot."
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    classes = results[0].classes
    for index, arm in enumerate(arms):
        runs = metrics_of(results, arm, rule)
        phases = list(zip(*([metrics["all"] for metrics in run] for run in runs), strict=True))
        average = fmean(run[-1]["average"] for run in runs)
        color = COLORS.get(arm, OTHER_COLORS[index % len(OTHER_COLORS)])
        if len(runs) > 1:
            low, high = map(min, phases), map(max, phases)
            axes.fill_between(classes, list(low), list(high), color=color, alpha=0.18, linewidth=0)
        axes.plot(
            classes,
            [fmean(values) for values in phases],
            color=color,
            linestyle="--" if arm == UPPER_BOUND else "-",
            linewidth=1.8,
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            label=f"{arm} ({average:.1f})",
        )
    axes.set_xticks(_tick_labels(classes))
    axes.set_xticks(classes, minor=True)
    axes.set_xlabel("number of classes seen", fontsize=12)
    axes.set_ylabel("accuracy on all classes seen (%)", fontsize=12)
    axes.set_title(title, fontsize=13)
    axes.tick_params(labelsize=11)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=11,
        title=f"by {RULES[rule]}; in brackets the average over phases",
        title_fontsize=10,
    )
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _tick_labels(classes: Sequence[int]) -> list[int]:
    """The phases to label, at equal steps, always with the last one. A somewhat larger step is
    taken if the first phase gets a label that way."""
    steps = len(classes) - 1
    least = max(1, math.ceil(steps / (MAX_TICK_LABELS - 1)))
    step = next((step for step in range(least, 2 * least + 1) if steps % step == 0), least)
    return list(classes[::-1][::step][::-1])
