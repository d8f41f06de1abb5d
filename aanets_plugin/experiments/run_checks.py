"""Checks of a run's network and memory before anything is trained."""

from torch import nn

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.settings import Memory


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
