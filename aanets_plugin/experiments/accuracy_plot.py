"""plot_accuracy: accuracy against the number of classes seen. Needs matplotlib when called."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from aanets_plugin.baselines.method import Rule
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.results import (
    FIXED,
    LEARNED,
    PLAIN,
    RULES,
    UPPER_BOUND,
    Result,
    arm_names,
    half_interval,
    metrics_of,
)
from aanets_plugin.plot_style import INK, MARKERS, OTHERS, labelled_ticks, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {
    PLAIN: "0.45",
    UPPER_BOUND: INK,
    LEARNED: OTHERS[0],
    FIXED: OTHERS[1],
}
"""The arms that have the same colour in every figure."""
MIN_SEEDS_FOR_BAND = 3
SHIFT = 0.06
"""Distance between the curves of two arms, as a part of the smallest step between phases."""


def plot_accuracy(
    results: Sequence[Result],
    path: str | os.PathLike[str] | None = None,
    *,
    rule: Rule = "head",
    title: str = "",
    measured: str | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Figure:
    """Draw the accuracy on all classes seen against their number, one curve per arm.

    A curve is the mean over seeds. From three seeds on, the band around it is the 95% interval of
    the mean by Student's t; two seeds are drawn as points. Curves are shifted a little along the
    axis, so that equal ones do not cover each other. The legend shows the average incremental
    accuracy, and `measured`, which says how it was measured (default: by `rule`). Arms that were
    not measured by `rule` are left out. `styles` has properties of matplotlib's lines for some
    arms. Returns the matplotlib figure, which is also saved to `path`, if given.
    """
    arms = [arm for arm in arm_names(results) if metrics_of(results, arm, rule)]
    if not arms:
        raise ConfigurationError(
            f"rule={rule!r}: no result was measured by this rule, so there is nothing to plot."
        )
    figure, (axes,) = new_figure(6.4, 4.6)
    classes = results[0].classes
    step = min((b - a for a, b in itertools.pairwise(classes)), default=1)
    lines = {
        arm: {"color": color, "marker": marker, **(styles or {}).get(arm, {})}
        for (arm, color), marker in zip(
            arm_colors(arms).items(), itertools.cycle(MARKERS), strict=False
        )
    }
    seeds = set()
    for index, arm in enumerate(arms):
        runs = metrics_of(results, arm, rule)
        seeds.add(len(runs))
        phases = list(zip(*([metrics["all"] for metrics in run] for run in runs), strict=True))
        means = [fmean(values) for values in phases]
        average = fmean(run[-1]["average"] for run in runs)
        color = lines[arm]["color"]
        places = [count + (index - (len(arms) - 1) / 2) * SHIFT * step for count in classes]
        if len(runs) >= MIN_SEEDS_FOR_BAND:
            half = [half_interval(values) for values in phases]
            low = [mean - width for mean, width in zip(means, half, strict=True)]
            high = [mean + width for mean, width in zip(means, half, strict=True)]
            axes.fill_between(places, low, high, color=color, alpha=0.18, linewidth=0)
        elif len(runs) > 1:
            points = [value for values in phases for value in values]
            at = [place for place in places for _ in runs]
            axes.scatter(at, points, s=9, color=color, alpha=0.6, linewidths=0)
        if arm == UPPER_BOUND:
            lines[arm].setdefault("linestyle", "--")
        axes.plot(places, means, label=f"{arm} ({average:.1f})", **lines[arm])
    axes.set_xticks(labelled_ticks(classes))
    axes.set_xticks(classes, minor=True)
    axes.set_xlabel("number of classes seen")
    axes.set_ylabel("accuracy on all classes seen (%)")
    axes.set_title(title)
    how = f"{measured or f'By {RULES[rule]}'}. In brackets: average over phases. {_shown(seeds)}"
    figure.legend(
        loc="outside lower center",
        ncols=2,
        title=textwrap.fill(how, 100),
        title_fontsize=9,
        frameon=False,
    )
    if path is not None:
        save(figure, path)
    return figure


def arm_colors(arms: Sequence[str]) -> dict[str, str]:
    """Return a colour for each arm. Those of the usual arms are the same in every figure."""
    others = iter(OTHERS[2:] * len(arms))
    return {arm: COLORS.get(arm) or next(others) for arm in arms}


def _shown(seeds: set[int]) -> str:
    """What a curve is, for the legend. `seeds` are the numbers of seeds of the arms."""
    most = max(seeds)
    if most >= MIN_SEEDS_FOR_BAND:
        number = str(most) if len(seeds) == 1 else f"up to {most}"
        return f"Mean of {number} seeds, band: 95% interval."
    return "Mean of two seeds, points: single seeds." if most > 1 else "One seed."
