"""The sections of the report, in the order of the page. One without data is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from markupsafe import Markup

from aanets_plugin.baselines.method import Rule
from aanets_plugin.branch_results import BranchReport, BranchRow
from aanets_plugin.budget import MB
from aanets_plugin.experiments.accuracy_plot import plot_accuracy
from aanets_plugin.experiments.report import html
from aanets_plugin.experiments.report.collect import Finished
from aanets_plugin.experiments.report.figures import plot_groups, plot_matrices
from aanets_plugin.experiments.report.short import short_text
from aanets_plugin.experiments.results import (
    LEARNED,
    PLAIN,
    RULES,
    Result,
    arm_names,
    metrics_of,
    paired_table,
    results_table,
)
from aanets_plugin.plot_style import to_svg
from aanets_plugin.plots import plot_alpha


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; `parts` are HTML."""

    id: str
    title: str
    text: str = ""
    parts: list[Markup] = field(default_factory=list)


def in_short(runs: Sequence[Finished], rule: Rule) -> Section:
    """Whether AANets helped, on which classes, and at what price."""
    return Section("short", "In short", short_text(runs, rule))


def accuracy(results: Sequence[Result], rule: Rule) -> Section:
    """Tables of the accuracies and of the differences to plain, and a figure for each rule."""
    parts = [html.table(results_table(results, reported=rule))]
    if PLAIN in (arms := arm_names(results)) and len(arms) > 1:
        parts.append(html.table(paired_table(results, reported=rule)))
    for each in sorted(RULES, key=lambda r: r != rule):
        if any(result.by(each) for result in results):
            figure = html.figure(to_svg(plot_accuracy(results, rule=each)))
            parts.append(figure if each == rule else html.details(f"By {RULES[each]}", figure))
    return Section("accuracy", "Accuracy", parts=parts)


def forgetting(results: Sequence[Result], rule: Rule) -> Section:
    """Accuracy on the classes of each phase, after each phase."""
    matrices = {}
    for arm in arm_names(results):
        if runs := metrics_of(results, arm, rule):
            matrices[arm] = [
                [
                    fmean(values)
                    for values in zip(*(run[i]["by_phase"] for run in runs), strict=True)
                ]
                for i in range(len(runs[0]))
            ]
    caption = (
        "Accuracy (%) on the classes of each phase, after each phase. Read a column from top to "
        "bottom to see how classes are forgotten."
    )
    figure = plot_matrices(matrices, rows="after phase", columns="classes of phase")
    return Section(
        "forgetting",
        "Which classes are forgotten when",
        parts=[html.figure(to_svg(figure), caption)],
    )


def groups(results: Sequence[Result], rule: Rule) -> Section:
    """Accuracy on old, new and first classes after the last phase."""
    names = {"all": "all", "old": "old", "new": "newest", "base": "first phase"}
    groups: dict[str, dict[str, float | None]] = {}
    for arm in arm_names(results):
        last = [run[-1] for run in metrics_of(results, arm, rule)]
        if last:
            known = {key: [m[key] for m in last if m[key] is not None] for key in names}
            groups[arm] = {names[k]: fmean(v) if v else None for k, v in known.items()}
    caption = "Accuracy on groups of classes after the last phase, mean over seeds."
    return Section(
        "groups",
        "Old, new and first classes",
        parts=[html.figure(to_svg(plot_groups(groups)), caption)],
    )


def confusion(results: Sequence[Result], rule: Rule) -> list[Section]:
    """Which phase's classes are taken for which; no section if it was not measured."""
    matrices = {}
    for arm in arm_names(results):
        counts: list[Any] = [run[-1].get("confusion") for run in metrics_of(results, arm, rule)]
        if counts and all(counts):
            phases = range(len(counts[0]))
            sums = [[sum(c[i][j] for c in counts) for j in phases] for i in phases]
            matrices[arm] = [[100 * n / max(1, sum(row)) for n in row] for row in sums]
    if not matrices:
        return []
    figure = plot_matrices(
        matrices, rows="classes of phase", columns="predicted as phase", colors="Purples"
    )
    caption = (
        "Test samples (%) of the classes of each phase, by the phase of the class that was "
        "predicted, after the last phase. The last column shows how far old classes are taken for "
        "new ones."
    )
    return [
        Section(
            "confusion",
            "Confusion of old and new classes",
            parts=[html.figure(to_svg(figure), caption)],
        )
    ]


def alpha(runs: Sequence[Finished]) -> list[Section]:
    """The course of α in the last run that learned it; no section without one."""
    learned = [run for run in runs if any(record.loss is not None for record in run.alpha)]
    if not learned:
        return []
    run = learned[-1]
    figure = plot_alpha(run.alpha, initial=run.config["aanets"].get("alpha"))
    caption = (
        f"The weight of the plastic branch in each level after each update, seed "
        f"{run.result.seed}. Below its start the level leans to the stable branch."
    )
    return [Section("alpha", "Aggregation weights α", parts=[html.figure(to_svg(figure), caption)])]


def branches(runs: Sequence[Finished]) -> list[Section]:
    """What each branch alone knows; no section if no run has measured it."""
    measured = [run for run in runs if run.branches]
    if not measured:
        return []
    run = next((run for run in reversed(measured) if run.result.arm == LEARNED), measured[-1])
    stored = dict(run.branches)
    samples = stored.pop("samples")
    rows = tuple(BranchRow(**{**row, "by_phase": tuple(row["by_phase"])}) for row in stored["rows"])
    report = BranchReport(rows, stored["shares"], tuple(stored["branches"]))
    text = (
        f"Accuracy by head if each level uses one branch alone, on {samples} test images "
        f"({run.result.arm}, seed {run.result.seed}). The paper's claim: the stable branch keeps "
        f"the old classes, the plastic one knows the new ones."
    )
    table = html.details("Numbers, level by level", html.table(str(report)))
    return [
        Section(
            "branches", "What each branch knows", text, [html.figure(to_svg(report.plot())), table]
        )
    ]


def grad_cam(runs: Sequence[Finished]) -> list[Section]:
    """The last run's Grad-CAM maps; no section without them."""
    pictures = [run for run in runs if run.grad_cam]
    if not pictures:
        return []
    alt = "Grad-CAM maps of the plastic branch, the stable branch and the aggregated level"
    data = pictures[-1].grad_cam
    image = Markup('<img alt="{}" src="data:image/png;base64,{}">').format(alt, data)
    caption = (
        "Grad-CAM maps of the last level for test images of classes that came in the first, a "
        "middle and the last phase: where each branch looks to recognize the class. Red is high."
    )
    return [Section("grad-cam", "Where each branch looks", parts=[html.figure(image, caption)])]


def cost(runs: Sequence[Finished]) -> list[Section]:
    """Parameters, FLOPs and memory of each arm; no section without them."""
    costs = {run.result.arm: run.cost for run in runs if run.cost}
    if not costs:
        return []
    lines = [
        "| arm | learned parameters | all parameters | FLOPs per image | memory (MB) |",
        "|---|---:|---:|---:|---:|",
    ]
    for arm, cost in costs.items():
        counts = " | ".join(f"{cost[key]:,}" for key in ("learnable", "parameters", "flops"))
        lines.append(f"| {arm} | {counts} | {cost['memory'] / MB:.2f} |")
    text = "After the last phase. Memory is that of the network in float32 and of the exemplars."
    return [Section("cost", "Cost", text, [html.table("\n".join(lines))])]


def commands(runs: Sequence[Finished], unfinished: int) -> Section:
    """The commands and settings of all runs."""
    commands = dict.fromkeys(run.command for run in runs if run.command)
    text = f"{unfinished} more runs in this folder are not finished." if unfinished else ""
    parts = [Markup("<pre>{}</pre>").format("\n".join(commands))] if commands else []
    for run in runs:
        settings = Markup("<pre>{}</pre>").format(json.dumps(run.config, indent=2))
        parts.append(html.details(f"Settings: {run.result.arm}, seed {run.result.seed}", settings))
    return Section("commands", "Commands and settings", text, parts)
