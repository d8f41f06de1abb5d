"""Grid: the runs that a table consists of, and the values of its cells."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from aanets_plugin.baselines import METHODS, Joint
from aanets_plugin.baselines.method import Method
from aanets_plugin.budget import Profile
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.backbones import backbone_factory
from aanets_plugin.experiments.costs import cost_of
from aanets_plugin.experiments.paper import numbers
from aanets_plugin.experiments.paper.grids import Row, Table
from aanets_plugin.experiments.paper.scales import Scale
from aanets_plugin.experiments.plan import Plan, Source
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.settings import Memory
from aanets_plugin.experiments.variants import VARIANTS, RunSettings, Shared


@dataclass(frozen=True)
class Cell:
    """The values of one cell, by seed, of the runs that are finished."""

    values: list[float]
    seeds: int
    reported: numbers.Reported | None


def method_of(name: str) -> Method:
    """The method of this name with its defaults; "joint" is one of them here."""
    kinds: dict[str, type[Method]] = {**METHODS, "joint": Joint}
    return kinds[name]()


class Grid:
    """The runs of some rows, numbers of phases and seeds, in the folder `output`."""

    def __init__(
        self,
        scale: Scale,
        rows: Sequence[Row],
        phases: Sequence[int],
        seeds: Sequence[int],
        *,
        output: Path,
        data: Path | None = None,
        device: str = "auto",
    ) -> None:
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ConfigurationError(
                f"seeds {' '.join(map(str, seeds)) or '(none)'}: must be ≥ 0 and different from "
                f"each other."
            )
        self.scale, self.rows = scale, list(rows)
        self.phases, self.seeds = list(phases), list(seeds)
        self.output, self.device = output, device
        self.source = Source(scale.dataset, data, scale.images_per_class)
        self.data = self.source.load()

    @cached_property
    def shared(self) -> Shared:
        """What all runs have in common, but for the training, which may depend on the method."""
        return Shared(
            backbone_factory(self.scale.backbone),
            Memory(per_class=self.scale.exemplars),
            self.scale.training,
            self.data.classes,
            self.data.input_shape,
        )

    @cached_property
    def plans(self) -> list[Plan]:
        """All runs, each once, those of the first seed first."""
        found: dict[str, Plan] = {}
        for seed in self.seeds:
            for phases in self.phases:
                for row in self.rows:
                    if row.method is not None:
                        plan = self.plan(row, phases, seed)
                        found[plan.name] = plan
        return list(found.values())

    def plan(self, row: Row, phases: int, seed: int) -> Plan:
        """The run of a cell with this seed."""
        assert row.method is not None
        settings = self.settings(row)
        own, _ = self.scale.configured(settings.method)
        variant = row.variant
        if row.strict is not None:
            variant += str(settings.memory.per_class)
        order = "E" if row.equal else "N"
        return Plan(
            f"{row.method}-{variant}-{order}{phases}-seed{seed}",
            replace(self.source, color_jitter=own.color_jitter),
            settings,
            self.scale.increments(self.data.classes, phases, equal=row.equal),
            seed,
            self.scale.precision,
            self.device,
        )

    def settings(self, row: Row) -> RunSettings:
        """The settings of a row, with the number of exemplars that a strict budget leaves."""
        assert row.method is not None
        scale, method = self.scale.configured(method_of(row.method))
        shared = replace(self.shared, training=scale.training)
        settings = shared.settings(method, VARIANTS[row.variant])
        if row.strict is None:
            return settings
        if self.scale.strict is not None:
            return replace(settings, memory=Memory(per_class=self.scale.strict[row.strict]))
        strict = Memory(per_class=self.scale.exemplars, strict=True)
        network = self.shared.network(settings.aanets)
        left = strict.reduced_for(network, self.data.classes, self.data.input_shape)
        return replace(settings, memory=left)

    def check(self, plans: Sequence[Plan] | None = None) -> None:
        """Check the settings of all runs (or of `plans`), and that runs in the folder have them."""
        groups: dict[object, list[Plan]] = {}
        for plan in self.plans if plans is None else plans:
            groups.setdefault((plan.settings, plan.increments), []).append(plan)
        for group in groups.values():
            with tempfile.TemporaryDirectory() as folder:
                try:
                    config = group[0].prepare(Path(folder)).config
                except (AssertionError, RuntimeError) as error:
                    raise ConfigurationError(
                        f"the backbone {self.scale.backbone} cannot process these images ({error})."
                    ) from error
            for plan in group:
                own = RunFolder(self.output / plan.name)
                own.open({**config, "seed": plan.seed}, resume=True)

    def cell(self, table: Table, row: Row, phases: int) -> Cell:
        """What was measured for a cell, and what the paper has there."""
        reported = numbers.accuracy(table.name, row.key, self.scale.dataset, phases)
        values = []
        if row.method is not None:
            rule = method_of(row.method).predicts_by
            for seed in self.seeds:
                plan = self.plan(row, phases, seed)
                rows = RunFolder(self.output / plan.name).rows()
                if len(rows) == len(plan.increments):
                    values.append(rows[-1][rule][table.metric])
        return Cell(values, len(self.seeds), reported)

    def cost(self, row: Row) -> Profile:
        """Parameters, FLOPs and memory after the last phase."""
        settings = self.settings(row)
        return cost_of(settings, self.data.classes, self.data.input_shape)
