"""Checks of a run's network and memory before anything is trained."""

from __future__ import annotations

import copy

from torch import nn

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.config import AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.errors import ConfigurationError, UnsupportedModelError
from aanets_plugin.experiments.settings import Memory
from aanets_plugin.stages import find_stages


def converted_copy(backbone: nn.Module, aanets: AANetConfig) -> nn.Module:
    """A converted copy of the backbone, which checks the conversion before anything is trained."""
    if aanets.stages is None and not find_stages(backbone):
        names = ", ".join(name for name, _ in backbone.named_children())
        raise UnsupportedModelError(
            f"{type(backbone).__name__} has no residual stage that is found automatically; its "
            f"modules are {names}. Name the stages in forward order: AANets(stages=[…]), on the "
            f"command line --stages."
        )
    return convert_to_aanet(copy.deepcopy(backbone), **aanets.conversion)


def exemplars_left(
    memory: Memory, aanets: AANetConfig | None, converted: nn.Module | None, phases: Phases
) -> Memory:
    """The memory that is left beside the converted backbone, checked against the data."""
    if converted is not None:
        memory = memory.reduced_for(converted, phases.classes, phases.input_shape)
    if memory.exemplars_per_class(phases.classes) < 1:
        raise ConfigurationError(
            f"total={memory.total}: must be ≥ {phases.classes}, one exemplar for each of the "
            f"{phases.classes} classes."
        )
    fewest = min(phases.smallest)
    if memory.per_class is not None and fewest < memory.per_class:
        raise ConfigurationError(
            f"per_class={memory.per_class} exemplars: must be ≤ {fewest}, since a class has only "
            f"{fewest} training samples."
        )
    most = min(fewest, memory.exemplars_per_class(phases.classes))
    if aanets is not None and (aanets.per_class or 0) > most:
        raise ConfigurationError(
            f"per_class={aanets.per_class} samples to balance α on: must be ≤ {most}, since a "
            f"class has only {most} at the end of the run."
        )
    return memory
