"""Continuum: the balanced data of α from a task set and a rehearsal memory."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import balanced_indices


def balanced_loader(
    taskset: Any,
    memory: Any = None,
    *,
    per_class: int | None = None,
    batch_size: int = 128,
    generator: torch.Generator | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """A loader for `BilevelStrategy.after_epoch`: the same number of samples of every class.

    Args:
        taskset: Continuum's task set of this phase, with or without the memory's samples added.
        memory: Continuum's RehearsalMemory; None, or empty, where `taskset` has all there is.
        per_class: samples of each class; by default as many as the smallest class has.
        generator: draws the samples and their order.
        options: anything else that torch's DataLoader takes.

    The task set's transforms apply to all samples, and `taskset` itself is left as it is.

        for taskset in scenario:
            loader = balanced_loader(taskset, memory)
            if len(memory):
                taskset.add_samples(*memory.get())
    """
    if not hasattr(taskset, "_y") or not hasattr(taskset, "add_samples"):
        raise ConfigurationError(
            f"expected a Continuum task set, got a {type(taskset).__name__}; pass what iterating "
            f"over a scenario gives."
        )
    joined = taskset
    if memory is not None and len(memory):
        x, y, t = memory.get()
        if not set(y.tolist()) <= set(taskset._y.tolist()):
            joined = copy.copy(taskset)
            joined.add_samples(x, y, t)
    chosen = balanced_indices(torch.as_tensor(joined._y), per_class, generator)
    return DataLoader(Subset(joined, chosen.tolist()), batch_size=batch_size, **options)
