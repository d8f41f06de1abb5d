"""What a person looks at after runs: tables, the accuracy curves, and a page with both.

matplotlib is imported when a picture is drawn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from aanets_plugin.baselines.method import Rule
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.plots import PLASTIC, STABLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULES: dict[Rule, str] = {"head": "head", "nearest_mean": "nearest mean"}
PLAIN, UPPER_BOUND = "plain", "upper bound"
COLORS = {
    PLAIN: "0.35",
    UPPER_BOUND: "black",
    "AANets, learned α": PLASTIC,
    "AANets, fixed α": STABLE,
}
OTHER_COLORS = ("#4a9d5b", "#8d63b0", "#c9a227", "#c2508f", "#3aa6a6", "#8a5a44")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
X_LABELS = 11  # more do not fit under the axis


@dataclass(frozen=True)
class Result:
    """One finished run. Metrics are `PhaseMetrics` as dicts, one per phase."""

    arm: str
    """What ran: "plain", "AANets, learned α", "AANets, fixed α", "upper bound", or another name."""
    seed: int
    classes: list[int]
    """How many classes had been seen after each phase."""
    head: list[dict[str, Any]]
    nearest_mean: list[dict[str, Any]] | None = None
    """None where there is no memory."""

    def __post_init__(self) -> None:
        for rule in RULES:
            metrics = self.by(rule)
            if metrics is not None and (not metrics or len(metrics) != len(self.classes)):
                raise ConfigurationError(
                    f"{self.arm}, seed {self.seed}: {len(metrics)} metrics in {rule} and "
                    f"classes={self.classes}; expected one of each per phase, at least one phase"
                )

    def by(self, rule: Rule) -> list[dict[str, Any]] | None:
        """The metrics by this rule."""
        return self.head if rule == "head" else self.nearest_mean


def results_table(results: Sequence[Result], *, reported: Rule | None = None) -> str:
    """A markdown table, a row for each arm by each rule, and a line that explains it.

    `reported` is the rule that the method's authors report: it comes first, in bold.
    """
    arms = _arms(results)
    rows = []
    for rule in _rules(reported):
        for arm in arms:
            runs = _metrics(results, arm, rule)
            if not runs:
                continue
            last = [run[-1] for run in runs]
            average = _mean_and_spread([metrics["average"] for metrics in last])
            rows.append(
                [
                    arm,
                    RULES[rule],
                    f"**{average}**" if rule == reported else average,
                    _mean_and_spread([metrics["all"] for metrics in last]),
                    *(_mean([m[key] for m in last]) for key in ("old", "new", "base")),
                    _mean([metrics["forgetting"] for metrics in last]),
                    str(len(runs)),
                ]
            )
    header = ["arm", "rule", "average", "last phase", "old", "new", "base", "forgetting", "seeds"]
    several = any(row[-1] != "1" for row in rows)
    caption = (
        f"Test accuracy in per cent, {_SPREAD if several else 'of one seed'}. Average: the mean "
        "over all phases of the accuracy on all classes seen. The other columns are after the last "
        "phase: on all classes, on those of earlier phases (old), of the last one (new), of phase "
        "0 (base). Forgetting: how far the classes of a phase are below their best accuracy in an "
        "earlier phase, mean over earlier phases; less is better."
    )
    if reported is not None:
        caption += f" Bold: by {RULES[reported]}, as the method's authors report it."
    return f"{_table(header, rows)}\n\n{caption}\n"


def paired_table(
    results: Sequence[Result], reference: str = PLAIN, *, reported: Rule | None = None
) -> str:
    """A markdown table of what each other arm gains over `reference`, and a line that explains it.

    The difference of the average incremental accuracy is taken between runs of the same seed; the
    interval is Student's t over seeds. `reported` is the rule that comes first, in bold.
    """
    arms = _arms(results)
    if reference not in arms:
        raise ConfigurationError(f"reference={reference!r}; expected one of the arms {arms}")
    rows = []
    for rule in _rules(reported):
        base = _averages(results, reference, rule)
        for arm in arms:
            own = _averages(results, arm, rule)
            if arm == reference or not own or not base:
                continue
            differences = [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]
            gain = signed(fmean(differences)) if differences else "–"
            bold = rule == reported and differences
            rows.append(
                [
                    arm,
                    RULES[rule],
                    f"**{gain}**" if bold else gain,
                    interval(differences),
                    str(len(differences)),
                ]
            )
    if not rows:
        raise ConfigurationError(
            f"nothing to compare with {reference!r}: expected another arm with a rule that both "
            f"have, got the arms {arms}"
        )
    header = ["arm", "rule", f"difference to {reference}", "95% interval", "seeds"]
    caption = (
        "Difference of the average incremental accuracy in percentage points, between runs of the "
        "same seed: mean over seeds, and the 95% interval of the mean by Student's t."
    )
    return f"{_table(header, rows)}\n\n{caption}\n"


def plot_accuracy(
    results: Sequence[Result],
    path: str | os.PathLike[str] | None = None,
    *,
    rule: Rule = "head",
    title: str = "",
) -> Figure:
    """Draw the accuracy on all classes seen against their number, one curve per arm.

    A curve is the mean over seeds, its band the range over seeds, the number in the legend its
    average incremental accuracy. Arms without metrics by this rule are left out. Returns the
    matplotlib figure, and saves it if a path is given.
    """
    arms = [arm for arm in _arms(results) if _metrics(results, arm, rule)]
    if not arms:
        raise ConfigurationError(f"no accuracy to plot: no result has metrics by rule={rule!r}.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    classes = results[0].classes
    for index, arm in enumerate(arms):
        runs = _metrics(results, arm, rule)
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
    axes.set_xticks(_labelled(classes))
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


def write_summary(
    path: str | os.PathLike[str],
    results: Sequence[Result],
    *,
    heading: str,
    command: str,
    notes: Sequence[str] = (),
    reported: Rule | None = None,
) -> None:
    """Write a markdown page: heading, the command behind the numbers, both tables, pictures.

    `accuracy.png` and `alpha.png` are shown if they are beside the page. The comparison with the
    plain network is left out where there is none. A reader sees the old page or the new one, never
    a part.
    """
    path = Path(path)
    parts = [f"# {heading}", f"```\n{command}\n```"]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    parts += ["## Accuracy", results_table(results, reported=reported).rstrip()]
    arms = _arms(results)
    if PLAIN in arms and len(arms) > 1:
        parts += ["## Against the plain network", paired_table(results, reported=reported).rstrip()]
    pictures = {"accuracy.png": "accuracy over the phases", "alpha.png": "α over the phases"}
    parts += [
        f"![{text}]({name})" for name, text in pictures.items() if (path.parent / name).exists()
    ]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


_SPREAD = "mean over seeds, ± half the range over seeds"


def _arms(results: Sequence[Result]) -> list[str]:
    """In the order of the results, the plain network first and the upper bound last."""
    if not results:
        raise ConfigurationError("no results: expected at least one finished run.")
    runs = set()
    for result in results:
        if (result.arm, result.seed) in runs:
            raise ConfigurationError(
                f"two results of {result.arm!r} with seed {result.seed}; expected one run for each "
                f"arm and seed"
            )
        runs.add((result.arm, result.seed))
        if result.classes != results[0].classes:
            raise ConfigurationError(
                f"{result.arm!r}, seed {result.seed} has classes={result.classes}, "
                f"{results[0].arm!r}, seed {results[0].seed} has {results[0].classes}; expected "
                f"the same phases in all results"
            )
    arms = dict.fromkeys(result.arm for result in results)
    return sorted(arms, key=lambda arm: (arm != PLAIN) + (arm == UPPER_BOUND))


def _rules(reported: Rule | None) -> list[Rule]:
    if reported is not None and reported not in RULES:
        raise ConfigurationError(f"reported={reported!r}; expected one of {list(RULES)}")
    return sorted(RULES, key=lambda rule: rule != reported)


def _metrics(results: Sequence[Result], arm: str, rule: Rule) -> list[list[dict[str, Any]]]:
    """Of each seed of the arm, where there are metrics by this rule."""
    if rule not in RULES:
        raise ConfigurationError(f"rule={rule!r}; expected one of {list(RULES)}")
    runs = (result.by(rule) for result in results if result.arm == arm)
    return [run for run in runs if run is not None]


def _averages(results: Sequence[Result], arm: str, rule: Rule) -> dict[int, float]:
    """Average incremental accuracy by seed."""
    runs = ((result.seed, result.by(rule)) for result in results if result.arm == arm)
    return {seed: run[-1]["average"] for seed, run in runs if run is not None}


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else "–"


def _mean_and_spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _mean(values)
    return f"{_mean(values)} ± {(max(values) - min(values)) / 2:.2f}"


def signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # + 0.0: no "-0.00"


def interval(differences: Sequence[float]) -> str:
    """The 95% interval of their mean by Student's t, in words where there is none."""
    if not differences:
        return "no seed in common"
    if len(differences) == 1:
        return "one seed, no interval"
    mean, count = fmean(differences), len(differences)
    half = _student(count - 1) * stdev(differences) / math.sqrt(count)
    return f"{signed(mean - half)} to {signed(mean + half)}"


def _labelled(classes: Sequence[int]) -> list[int]:
    """At equal steps up to the last phase; from the first one if such a step is near."""
    steps = len(classes) - 1
    least = max(1, math.ceil(steps / (X_LABELS - 1)))
    step = next((step for step in range(least, 2 * least + 1) if steps % step == 0), least)
    return list(classes[::-1][::step][::-1])


def _student(freedom: int, probability: float = 0.95) -> float:
    """t such that |Student's t| with this many degrees of freedom is below it at `probability`."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        below = _within(middle, freedom) < probability
        low, high = (middle, high) if below else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(theta: float, freedom: int) -> float:
    """Probability that |Student's t| < √freedom · tan(theta): the finite sums for whole degrees of
    freedom, Abramowitz and Stegun 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):  # the power of the cosine in this term
        total += term
        term *= math.cos(theta) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(theta)
    return 2 / math.pi * (theta + total) if odd else total


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown that is aligned as plain text too; the first two columns are words, then numbers."""
    cells = [[text.replace("|", r"\|") for text in row] for row in (header, *rows)]
    widths = [max(len(text) for text in column) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(cells[0]), line(rule), *(line(row) for row in cells[1:])])
