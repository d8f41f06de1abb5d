"""The finished runs of evidence_plan.py, read from their text files, and pairs of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence_plan import ARMS, PLAN, PROTOCOLS, Planned

from aanets_plugin import AlphaRecord, convert_to_aanet, profile
from aanets_plugin.baselines import METHODS, CifarResNet, Joint
from aanets_plugin.baselines.lifecycle import build_network
from aanets_plugin.baselines.metrics import intransigence
from aanets_plugin.experiments.results import RULES, Result
from aanets_plugin.experiments.run_folder import RunFolder

SHAPE, CLASSES = (3, 32, 32), 100


def title_of(method: str) -> str:
    """The name of a method in tables and pictures."""
    return METHODS.get(method, Joint).title


@dataclass(frozen=True)
class Finished:
    """A run and what it left."""

    planned: Planned
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    seconds: list[float]
    """Processor time by phase."""
    alpha: list[AlphaRecord]

    @property
    def rule(self) -> Any:
        """The rule that the method's authors report."""
        return METHODS.get(self.planned.method, Joint).predicts_by

    def value(self, name: str, rule: str | None = None) -> float:
        """A metric after the last phase, by the reported rule or another one."""
        return float(self.rows[-1][rule or self.rule][name])

    @property
    def precision(self) -> str:
        """The number format of the network."""
        return {"no": "float32"}.get(self.config["precision"], self.config["precision"])

    @property
    def start(self) -> tuple[Any, ...]:
        """Runs for which this is equal can be compared: they begin with the same first phase."""
        first = self.rows[0]["head"]["all"]
        return self.planned.seed, self.planned.order, self.precision, first

    @property
    def minutes(self) -> float:
        """Processor time of all phases but the first, which runs share."""
        return sum(self.seconds[1 : len(self.rows)]) / 60

    @property
    def title(self) -> str:
        """The method and the phases, in words."""
        return f"{title_of(self.planned.method)}, {PROTOCOLS[self.planned.protocol].label}"

    @property
    def result(self) -> Result:
        metrics = {rule: [row[rule] for row in self.rows] for rule in RULES if rule in self.rows[0]}
        classes = [row["classes"] for row in self.rows]
        return Result(ARMS[self.planned.arm].label, self.planned.seed, classes, **metrics)


def read(keep: Path) -> dict[Planned, Finished]:
    """The planned runs that are finished."""
    finished = {}
    for planned in PLAN:
        folder = keep / planned.name
        rows = RunFolder(folder).rows()
        if len(rows) == planned.phases:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            times = json.loads((folder / "time.json").read_text(encoding="utf-8"))
            alpha = RunFolder(folder).alpha()
            finished[planned] = Finished(planned, config, rows, times["cpu_seconds"], alpha)
    return finished


@functools.cache
def cost(method: str, blocks: tuple[str, ...] | None, stem: str, exemplars: int) -> Any:
    """Parameters and memory after the last phase."""
    kind = METHODS[method]()
    net = build_network(lambda: CifarResNet(3, CLASSES), kind, CLASSES, SHAPE)
    if blocks is not None:
        convert_to_aanet(net.backbone, blocks=blocks, stem=stem)
    return profile(net, SHAPE, exemplars=exemplars * CLASSES)


def cost_of(run: Finished) -> Any:
    aanets = run.config["aanets"] or {"blocks": None, "stem": ""}
    blocks = None if aanets["blocks"] is None else tuple(aanets["blocks"])
    return cost(run.planned.method, blocks, aanets["stem"], run.config["memory"]["per_class"])


def intransigence_of(run: Finished, runs: dict[Planned, Finished]) -> float | None:
    """Against joint training with the same seed; None if there is no such run."""
    planned = run.planned
    joint = runs.get(Planned("joint", "plain", planned.protocol, planned.seed, planned.order))
    if joint is None:
        return None
    best, own = [row["head"] for row in joint.rows], [row[run.rule] for row in run.rows]
    return intransigence(own, best)


def matched(some: Sequence[Finished], first: str, second: str) -> list[tuple[Finished, Finished]]:
    """Runs of two arms that begin with the same first phase."""
    others = {run.start: run for run in some if run.planned.arm == second}
    return [
        (run, others[run.start]) for run in some if run.planned.arm == first and run.start in others
    ]
