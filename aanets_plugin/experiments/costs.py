"""costs_table: accuracy, forgetting and intransigence of each arm, with what it costs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from aanets_plugin.baselines.lifecycle import build_network
from aanets_plugin.baselines.method import Rule
from aanets_plugin.baselines.metrics import intransigence
from aanets_plugin.budget import MB, Profile, profile, short_count
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.experiments.results import UPPER_BOUND, Result, arm_names, markdown_table
from aanets_plugin.experiments.run_time import read_time
from aanets_plugin.experiments.variants import RunSettings

METRICS = ("average", "all", "old", "new", "base", "forgetting")


def cost_of(settings: RunSettings, classes: int, input_shape: tuple[int, int, int]) -> Profile:
    """Parameters, FLOPs and memory of a run after its last phase."""
    net = build_network(settings.backbone, settings.method, classes, input_shape)
    if settings.aanets is not None:
        convert_to_aanet(net.backbone, **settings.aanets.conversion)
    exemplars = 0
    if not settings.method.keeps_all_data:
        memory = settings.memory.reduced_for(net, classes, input_shape)
        exemplars = memory.exemplars_per_class(classes) * classes
    return profile(net, input_shape, exemplars=exemplars)


def seconds_of(folder: Path) -> float | None:
    """The wall time of a run but for its first phase, which runs share; None if it is not known."""
    seconds = read_time(folder).get("wall_seconds")
    return None if seconds is None else sum(seconds[1:])


@dataclass(frozen=True)
class Measured:
    """A finished run, what its network costs and how long it took."""

    result: Result
    cost: Profile
    seconds: float | None

    def metrics(self, rule: Rule, others: Sequence[Measured]) -> dict[str, Any]:
        """After the last phase, by this rule (joint training: by its head)."""
        phases = self.result.by(rule) or self.result.head
        found = {name: phases[-1][name] for name in METRICS}
        joint = [
            other.result.head
            for other in others
            if other.result.arm == UPPER_BOUND
            and (other.result.seed, other.result.order) == (self.result.seed, self.result.order)
        ]
        found["intransigence"] = intransigence(phases, joint[0]) if joint else None
        return found


def costs_table(runs: Sequence[Measured], rule: Rule) -> str:
    """A markdown table with one row per arm, mean over its runs, and a caption."""
    header = ["arm", "seeds", "average", "last phase", "old", "new", "base", "forgetting"]
    header += ["intransigence", "learnable", "parameters", "FLOPs", "MB", "minutes"]
    rows = []
    for arm in arm_names([run.result for run in runs]):
        own = [run for run in runs if run.result.arm == arm]
        metrics = [run.metrics(rule, runs) for run in own]
        cost = own[0].cost
        minutes = [None if run.seconds is None else run.seconds / 60 for run in own]
        rows.append(
            [
                arm,
                str(len(own)),
                *(_mean([found[name] for found in metrics]) for name in metrics[0]),
                *map(short_count, (cost.learnable, cost.parameters, cost.flops)),
                f"{cost.memory / MB:.2f}",
                _mean(minutes),
            ]
        )
    caption = (
        "Test accuracy in per cent after the last phase, mean over seeds; average: over all "
        "phases. Intransigence: how far new classes are below joint training (the upper bound), "
        "mean over the phases after the first. Cost after the last phase: parameters that are "
        "learned, all parameters, multiply-adds of one image, memory of parameters and exemplars "
        "(of joint training: of parameters alone, though it keeps all data); wall time of all "
        "phases but the first."
    )
    return f"{markdown_table(header, rows)}\n\n{caption}\n"


def costs_csv(runs: Sequence[Measured], rule: Rule) -> str:
    """The same with a line for each run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    cost_names = ("learnable", "parameters", "flops", "memory")
    names = [*METRICS, "intransigence"]
    writer.writerow(["arm", "seed", "order", *names, *cost_names, "seconds"])
    for run in runs:
        found: Mapping[str, Any] = run.metrics(rule, runs)
        costs = (getattr(run.cost, name) for name in cost_names)
        head = (run.result.arm, run.result.seed, run.result.order)
        writer.writerow([*head, *(found[name] for name in names), *costs, run.seconds])
    return text.getvalue()


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else "–"
