"""VARIANTS: how a run of a method can differ from the plain one, by name.

They are the arms of comparisons, the rows of the paper's tables and the fair controls. `Shared`
turns a variant into the settings of its runs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch import nn

from aanets_plugin.baselines.lifecycle import Backbone
from aanets_plugin.baselines.method import Method
from aanets_plugin.baselines.network import without_head
from aanets_plugin.baselines.resnet import CifarResNet
from aanets_plugin.budget import Profile, profile
from aanets_plugin.config import DEFAULTS, AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.settings import Memory, Training

COMPUTE = 1.1
"""The time of an epoch with AANets is this times the ratio of FLOPs: α is updated after it. With
two branches that is 2.2 epochs of the plain network (measured: 2.1 to 2.3)."""


@dataclass(frozen=True)
class Variant:
    """How one run of a method differs from another."""

    label: str
    aanets: Mapping[str, Any] | None = None
    """What differs from the options of AANets in the comparison; None for the plain network."""
    memory: str = "equal"
    """Exemplars: "equal", "strict" (less by the extra parameters), or "more" (more by them)."""
    epochs: str = "equal"
    """Epochs of later phases: "equal", or "more" (by the additional time of AANets)."""
    width: str = "equal"
    """Filters of the network: "equal", or "more" (as many parameters as AANets)."""


def _branches(*blocks: str, **options: Any) -> dict[str, Any]:
    return {"blocks": blocks, **options}


# Branches of the same type start from the same weights and get the same gradients, so that α would
# not move: it is fixed.
_FIXED = {"lr": 0.0}
VARIANTS = {
    "plain": Variant("plain"),
    "learned": Variant("AANets, learned α", {}),
    "fixed": Variant("AANets, fixed α", _FIXED),
    "compute": Variant("plain, equal compute", epochs="more"),
    "memory": Variant("plain, equal memory", memory="more"),
    "wider": Variant("plain, wider network", width="more"),
    "strict": Variant("AANets, strict budget", {}, memory="strict"),
    "all_all": Variant("all + all, fixed α", _branches("all", "all", **_FIXED)),
    "all_x4": Variant("4 x all, fixed α", _branches(*["all"] * 4, **_FIXED)),
    "all_frozen": Variant("all + frozen", _branches("all", "frozen")),
    "scaling": Variant("scaling alone", _branches("scaling")),
    "scaling_scaling": Variant(
        "scaling + scaling, fixed α", _branches("scaling", "scaling", **_FIXED)
    ),
    "scaling_x4": Variant("4 x scaling, fixed α", _branches(*["scaling"] * 4, **_FIXED)),
    "scaling_frozen": Variant("scaling + frozen", _branches("scaling", "frozen")),
    "stem_plastic": Variant("stem plastic", {"stem": "plastic"}),
    "stem_paired": Variant("stem paired", {"stem": "paired"}),
    "imbalanced": Variant("α on imbalanced data", {"balanced": False}),
    "update_base": Variant("AANets, update_base", {"update_base": True}),
    "official": Variant(
        "AANets, official update", {"official": True, "lr": None, "momentum": None}
    ),
}
CONTROLS = ("memory", "compute", "all_all", "wider")
"""The fair controls: what else the cost of AANets could be spent on."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run, but for its data and seed."""

    method: Method
    aanets: AANetConfig | None
    memory: Memory
    training: Training
    backbone: Backbone


@dataclass(frozen=True)
class Shared:
    """What the arms of a comparison have in common."""

    backbone: Backbone
    memory: Memory
    training: Training
    classes: int
    input_shape: tuple[int, int, int]
    aanets: AANetConfig = DEFAULTS

    def settings(self, method: Method, variant: Variant) -> RunSettings:
        """The settings of a variant."""
        aanets = None if variant.aanets is None else replace(self.aanets, **variant.aanets)
        memory, training, backbone = self.memory, self.training, self.backbone
        if variant.memory == "strict":
            memory = replace(memory, strict=True)
        elif variant.memory == "more":
            memory = self._more_memory()
        if variant.epochs == "more":
            ratio = COMPUTE * self._converted.flops / self._plain.flops
            first, later = training.epochs_of(0), round(ratio * training.epochs)
            training = replace(training, epochs=later, base_epochs=first)
        if variant.width == "more":
            backbone = self._wider()
        return RunSettings(method, aanets, memory, training, backbone)

    def _more_memory(self) -> Memory:
        """More exemplars by as many as a strict budget has less."""
        strict = replace(self.memory, strict=True)
        less = strict.reduced_for(self.network(self.aanets), self.classes, self.input_shape)
        if self.memory.per_class is not None and less.per_class is not None:
            return replace(self.memory, per_class=2 * self.memory.per_class - less.per_class)
        assert self.memory.total is not None
        assert less.total is not None
        return replace(self.memory, total=2 * self.memory.total - less.total)

    def _wider(self) -> Backbone:
        """The network with the most filters that has no more parameters than AANets."""
        model = self.backbone if isinstance(self.backbone, nn.Module) else self.backbone()
        if not isinstance(model, CifarResNet):
            raise ConfigurationError(
                f"wider: {type(model).__name__} cannot be made wider, only resnet8, resnet20 and "
                f"resnet32 can. Leave out this control, or use one of these networks."
            )
        depth, filters = len(model.layer1), model.conv1.out_channels
        while True:
            wider = partial(CifarResNet, depth, self.classes, filters=filters + 1)
            body = without_head(wider(), self.input_shape)
            if sum(p.numel() for p in body.parameters()) > self._converted.parameters:
                return partial(CifarResNet, depth, self.classes, filters=filters)
            filters += 1

    @cached_property
    def _plain(self) -> Profile:
        return profile(self.network(None), self.input_shape)

    @cached_property
    def _converted(self) -> Profile:
        return profile(self.network(self.aanets), self.input_shape)

    def network(self, aanets: AANetConfig | None) -> nn.Module:
        """The network without its head."""
        model = self.backbone if isinstance(self.backbone, nn.Module) else self.backbone()
        body = without_head(copy.deepcopy(model), self.input_shape)
        return body if aanets is None else convert_to_aanet(body, **aanets.conversion)
