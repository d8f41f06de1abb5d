"""Result, and the tables and the summary page made from results. Needs torch alone.

The interval in `paired_table` needs scipy.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from aanets_plugin.baselines.method import Rule
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.files import write_text

RULES: dict[Rule, str] = {"head": "head", "nearest_mean": "nearest mean"}
PLAIN, UPPER_BOUND = "plain", "upper bound"
LEARNED, FIXED = "AANets, learned α", "AANets, fixed α"
"""The names of the arms in tables and figures."""


@dataclass(frozen=True)
class Result:
    """The measurements of one finished run.

    `head` and `nearest_mean` have one entry per phase, a `PhaseMetrics` as a dict: accuracies by
    the network's head and by the nearest mean of the exemplars.
    """

    arm: str
    """The kind of run: "plain", "AANets, learned α", "AANets, fixed α", "upper bound", or your own
    name."""
    seed: int
    classes: list[int]
    """The number of classes seen after each phase."""
    head: list[dict[str, Any]]
    nearest_mean: list[dict[str, Any]] | None = None
    """None without exemplars."""
    order: str = ""
    """The name of the class order, if a comparison has several."""

    def __post_init__(self) -> None:
        for rule in RULES:
            metrics = self.by(rule)
            if metrics is not None and (not metrics or len(metrics) != len(self.classes)):
                raise ConfigurationError(
                    f"{self.arm}, seed {self.seed}: {rule} has {len(metrics)} entries, "
                    f"classes={self.classes}. Both must have one entry per phase, for at least one "
                    f"phase."
                )

    def by(self, rule: Rule) -> list[dict[str, Any]] | None:
        """`head` or `nearest_mean`."""
        return self.head if rule == "head" else self.nearest_mean


def arm_names(results: Sequence[Result]) -> list[str]:
    """The arms in the order of the results, the plain network first and the upper bound last."""
    if not results:
        raise ConfigurationError("results=[]: must have at least one finished run.")
    first = results[0]
    runs = set()
    for result in results:
        order = f" and {result.order}" if result.order else ""
        run = f"{result.arm!r} with seed {result.seed}{order}"
        if run in runs:
            raise ConfigurationError(
                f"two results of {run}: must be one for each arm and seed. Leave one out."
            )
        runs.add(run)
        if result.classes != first.classes:
            raise ConfigurationError(
                f"{run} has classes={result.classes}, {first.arm!r} with seed {first.seed} has "
                f"{first.classes}: must be the same. Compare runs on the same phases."
            )
    arms = dict.fromkeys(result.arm for result in results)
    return sorted(arms, key=lambda arm: (arm != PLAIN) + (arm == UPPER_BOUND))


def metrics_of(results: Sequence[Result], arm: str, rule: Rule) -> list[list[dict[str, Any]]]:
    """The metrics of an arm by this rule, one list of phases per seed."""
    _check_rule(rule, "rule")
    runs = (result.by(rule) for result in results if result.arm == arm)
    return [run for run in runs if run is not None]


def results_table(results: Sequence[Result], *, reported: Rule | None = None) -> str:
    """A markdown table with one row per arm and rule, and a caption.

    The rule that the method's authors report, `reported`, comes first and in bold.
    """
    arms = arm_names(results)
    rows = []
    for rule in _reported_first(reported):
        for arm in arms:
            runs = metrics_of(results, arm, rule)
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
    spread = "mean over seeds, ± half the range over seeds"
    several = any(row[-1] != "1" for row in rows)
    caption = (
        f"Test accuracy in per cent, {spread if several else 'of one seed'}. Average: the mean "
        "over all phases of the accuracy on all classes seen. The other columns are after the last "
        "phase: on all classes, on those of earlier phases (old), of the last one (new), of phase "
        "0 (base). Forgetting: how far the classes of a phase are below their best accuracy in an "
        "earlier phase, mean over earlier phases; less is better."
    )
    if reported is not None:
        caption += f" Bold: by {RULES[reported]}, as the method's authors report it."
    return f"{markdown_table(header, rows)}\n\n{caption}\n"


def paired_table(
    results: Sequence[Result], reference: str = PLAIN, *, reported: Rule | None = None
) -> str:
    """A markdown table of the gain of each arm over the arm `reference`, and a caption.

    The gain is the difference in average incremental accuracy between runs of the same seed, with
    a 95% interval over seeds by Student's t. The rule `reported` comes first, in bold.
    """
    arms = arm_names(results)
    if reference not in arms:
        raise ConfigurationError(f"reference={reference!r}: must be one of the arms {arms}.")
    rows = []
    for rule in _reported_first(reported):
        base = _averages(results, reference, rule)
        for arm in arms:
            if arm == reference or not _averages(results, arm, rule) or not base:
                continue
            differences = gains(results, arm, reference, rule)
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
            f"nothing to compare with {reference!r}: the arms are {arms}. Add a result of another "
            f"arm that was measured by the same rule."
        )
    header = ["arm", "rule", f"difference to {reference}", "95% interval", "seeds"]
    caption = (
        "Difference of the average incremental accuracy in percentage points, between runs of the "
        "same seed: mean over seeds, and the 95% interval of the mean by Student's t."
    )
    return f"{markdown_table(header, rows)}\n\n{caption}\n"


def gains(results: Sequence[Result], arm: str, reference: str, rule: Rule) -> list[float]:
    """The differences in average incremental accuracy to `reference`, one per seed in common."""
    own, base = (_averages(results, name, rule) for name in (arm, reference))
    return [own[key] - base[key] for key in sorted(own.keys() & base.keys())]


def accuracy_table(results: Sequence[Result], *, rule: Rule = "head") -> str:
    """A markdown table of the accuracy on all classes seen after each phase, and a caption.

    These are the numbers that `plot_accuracy` draws: one row per arm, one column per phase.
    """
    rows = []
    for arm in arm_names(results):
        runs = metrics_of(results, arm, rule)
        if runs:
            phases = [_mean([run[phase]["all"] for run in runs]) for phase in range(len(runs[0]))]
            last = [[run[-1][key] for run in runs] for key in ("average", "forgetting")]
            rows.append([arm, RULES[rule], *phases, *map(_mean, last)])
    classes = [f"{count} classes" for count in results[0].classes]
    header = ["arm", "rule", *classes, "average", "forgetting"]
    caption = "Test accuracy in per cent on all classes seen so far, mean over seeds."
    return f"{markdown_table(header, rows)}\n\n{caption}\n"


def write_summary(
    path: str | os.PathLike[str],
    results: Sequence[Result],
    *,
    heading: str,
    command: str,
    notes: Sequence[str] = (),
    reported: Rule | None = None,
) -> None:
    """Write a markdown page with the command, the tables and the plots.

    `accuracy.png` and `alpha.png` are shown if they are in the same folder. The differences to the
    plain network are shown if it is among the results.
    """
    path = Path(path)
    parts = [f"# {heading}", f"```\n{command}\n```"]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    parts += ["## Accuracy", results_table(results, reported=reported).rstrip()]
    arms = arm_names(results)
    if PLAIN in arms and len(arms) > 1:
        parts += ["## Against the plain network", paired_table(results, reported=reported).rstrip()]
    pictures = {"accuracy.png": "accuracy over the phases", "alpha.png": "α over the phases"}
    parts += [
        f"![{text}]({name})" for name, text in pictures.items() if (path.parent / name).exists()
    ]
    write_text(path, "\n\n".join(parts) + "\n")


def signed(value: float) -> str:
    """A difference with its sign and two decimals."""
    return f"{round(value, 2) + 0.0:+.2f}"  # + 0.0: no "-0.00"


def interval(differences: Sequence[float]) -> str:
    """The 95% interval of their mean by Student's t, as text."""
    if not differences:
        return "no seed in common"
    if len(differences) == 1:
        return "one seed, no interval"
    mean, half = fmean(differences), half_interval(differences)
    return f"{signed(mean - half)} to {signed(mean + half)}"


def half_interval(values: Sequence[float]) -> float:
    """Half the 95% interval of the mean of two or more values, by Student's t."""
    from scipy.stats import t  # type: ignore[import-untyped]

    count = len(values)
    return float(t.ppf(0.975, count - 1)) * stdev(values) / math.sqrt(count)


def _check_rule(rule: Rule, name: str) -> None:
    if rule not in RULES:
        raise ConfigurationError(f"{name}={rule!r}: must be one of {list(RULES)}.")


def _reported_first(reported: Rule | None) -> list[Rule]:
    if reported is not None:
        _check_rule(reported, "reported")
    return sorted(RULES, key=lambda rule: rule != reported)


def _averages(results: Sequence[Result], arm: str, rule: Rule) -> dict[tuple[str, int], float]:
    """Average incremental accuracy by class order and seed."""
    runs = (((r.order, r.seed), r.by(rule)) for r in results if r.arm == arm)
    return {key: run[-1]["average"] for key, run in runs if run is not None}


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else "–"


def _mean_and_spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _mean(values)
    return f"{_mean(values)} ± {(max(values) - min(values)) / 2:.2f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table, aligned as plain text too. The first two columns are words."""
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
