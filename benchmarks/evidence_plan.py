"""The runs behind benchmarks/evidence.md, as data: which there are, and in which order they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from aanets_plugin.experiments.variants import VARIANTS, Variant

__all__ = ["ARMS", "PLAN", "PROTOCOLS"]

ARMS = {
    **VARIANTS,
    "holdout": Variant("AANets, α on held-out exemplars", {}),
    "half_lr": Variant("plain, half the learning rate"),
}
"""How runs of a method differ from the plain one. The last two are made in evidence.py."""
PAPER_ORDER = 1993
"""The seed of the paper's class order."""


@dataclass(frozen=True)
class Protocol:
    """Which classes come when."""

    label: str
    base_classes: int
    phases: int

    @property
    def increments(self) -> list[int]:
        first = [self.base_classes] if self.base_classes else []
        return first + [(100 - self.base_classes) // self.phases] * self.phases


PROTOCOLS = {
    "N5": Protocol("50 classes, then 5 phases of 10", 50, 5),
    "N10": Protocol("50 classes, then 10 phases of 5", 50, 10),
    "N25": Protocol("50 classes, then 25 phases of 2", 50, 25),
    "scratch": Protocol("10 phases of 10 classes", 0, 10),
}


@dataclass(frozen=True)
class Planned:
    """One run."""

    method: str
    arm: str = "plain"
    protocol: str = "N5"
    seed: int = 0
    order: int = PAPER_ORDER

    @property
    def name(self) -> str:
        parts = [self.method, self.arm, self.protocol, f"seed{self.seed}"]
        return "-".join(parts + ([f"order{self.order}"] if self.order != PAPER_ORDER else []))

    @property
    def phases(self) -> int:
        return len(PROTOCOLS[self.protocol].increments)


@dataclass(frozen=True)
class Group:
    """Runs that answer one question."""

    title: str
    runs: list[Planned] = field(default_factory=list)


BOTH = ("icarl", "lucir")
SEEDS = (0, 1)
MAIN = ("plain", "learned", "fixed")
CONTROLS = (*MAIN, "compute", "memory", "strict", "all_all")
BLOCKS = ("all_frozen", "scaling_frozen", "scaling", "stem_plastic", "stem_paired", "imbalanced")

GROUPS = [
    Group(
        "Controls",
        [Planned(m, arm, seed=seed) for arm, seed, m in product(CONTROLS, SEEDS, BOTH)],
    ),
    Group(
        "More phases",
        [
            Planned(m, arm, protocol, seed)
            for seed, protocol, m, arm in product(SEEDS, ("N10", "N25"), BOTH, MAIN)
        ],
    ),
    Group(
        "Blocks and stems",
        [Planned("lucir", arm, seed=seed) for seed, arm in product(SEEDS, BLOCKS)],
    ),
    Group(
        "Another class order, and the other methods",
        [Planned(m, arm, seed=2, order=2) for m, arm in product(BOTH, MAIN)]
        + [
            Planned(m, arm, seed=seed, order=2 if seed == 2 else PAPER_ORDER)
            for seed, m, arm in product((1, 2, 0), ("podnet", "mnemonics"), MAIN)
        ],
    ),
    Group(
        "From scratch",
        [
            Planned(m, arm, "scratch", seed)
            for seed, m, arm in product(SEEDS, BOTH, ("plain", "learned", "update_base"))
        ],
    ),
    Group("The official update", [Planned("lucir", "official")]),
    Group(
        "Joint training, the reference of intransigence", [Planned("joint", seed=s) for s in SEEDS]
    ),
    Group(
        "α on held-out exemplars",
        [
            Planned(m, "holdout", protocol, seed)
            for protocol, seed, m in product(("N5", "N25"), SEEDS, BOTH)
        ],
    ),
    Group(
        "Half the learning rate",
        [Planned(m, "half_lr", seed=seed) for seed, m in product(SEEDS, BOTH)],
    ),
]

PLAN = [run for group in GROUPS for run in group.runs]
"""All runs, the most important first."""
