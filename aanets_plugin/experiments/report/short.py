"""short_text: the results of runs in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from aanets_plugin.baselines.method import Rule
from aanets_plugin.experiments.report.collect import Finished
from aanets_plugin.experiments.results import (
    PLAIN,
    RULES,
    Result,
    arm_names,
    gains,
    interval,
    metrics_of,
    signed,
)


def short_text(runs: Sequence[Finished], rule: Rule) -> str:
    """Whether AANets helped, on which classes, what each branch knows, and at what price."""
    results = [run.result for run in runs]
    arms = [arm for arm in arm_names(results) if metrics_of(results, arm, rule)]
    average = {arm: _mean_of_last(results, arm, rule, "average") for arm in arms}
    ours = next((arm for arm in arms if arm.startswith("AANets")), None)
    if ours is None or PLAIN not in arms:
        text = "; ".join(f"{arm}: {average[arm]:.2f}%" for arm in arms)
        return f"Average incremental accuracy by {RULES[rule]}: {text}."
    differences = gains(results, ours, PLAIN, rule)
    spread = "one seed" if len(differences) < 2 else f"95% interval {interval(differences)}"
    text = (
        f"{ours}: {average[ours]:.2f}% average incremental accuracy by {RULES[rule]}, against "
        f"{average[PLAIN]:.2f}% of the plain network: {signed(fmean(differences))} points "
        f"({spread})."
    )
    if len(results[0].classes) > 1:
        old, new = (
            signed(
                _mean_of_last(results, ours, rule, key) - _mean_of_last(results, PLAIN, rule, key)
            )
            for key in ("old", "new")
        )
        text += f" After the last phase: {old} points on old classes, {new} on the newest ones."
    text += _branches([run for run in runs if run.result.arm == ours and run.branches])
    costs = {run.result.arm: run.cost for run in runs if run.cost}
    if {ours, PLAIN} <= costs.keys():
        parameters, flops = (costs[ours][k] / costs[PLAIN][k] for k in ("parameters", "flops"))
        text += f" Price: {parameters:.2f} times the parameters, {flops:.2f} times the FLOPs."
    return text


def _branches(runs: Sequence[Finished]) -> str:
    """What each branch alone knows of the first and of the newest classes, mean over runs."""
    known: dict[str, list[list[float]]] = {}
    for run in runs:
        for row in run.branches["rows"]:
            if row["branch"] is not None and row["level"] is None and len(row["by_phase"]) > 1:
                known.setdefault(row["branch"], []).append(row["by_phase"])
    if len(known) < 2:
        return ""
    each = [
        f"the {branch} branch knows {fmean(phases[0] for phases in own):.0f}% of the first classes "
        f"and {fmean(phases[-1] for phases in own):.0f}% of the newest"
        for branch, own in reversed(known.items())
    ]
    return f" Alone, {'; '.join(each)}."


def _mean_of_last(results: Sequence[Result], arm: str, rule: Rule, key: str) -> float:
    """The mean over seeds of a metric after the last phase."""
    return fmean(run[-1][key] for run in metrics_of(results, arm, rule))
