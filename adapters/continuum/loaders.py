"""balanced_loader: class-balanced data for α from a task set and a rehearsal memory."""

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
    balanced: bool = True,
    batch_size: int = 128,
    generator: torch.Generator | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """A loader for `BilevelStrategy.after_epoch` with the same number of samples of every class.

    The transforms of the task set apply to all samples. `taskset` itself is not changed.

    Args:
        taskset: Continuum's task set of this phase, with or without the samples of the memory.
        memory: Continuum's `RehearsalMemory`. None or empty: use the samples of `taskset` alone.
        per_class: as in `balanced_indices`.
        generator: as in `balanced_indices`.
        balanced: False: all samples of the task set and the memory, in random order.
        options: other arguments of torch's `DataLoader`.

    Examples:
        >>> import numpy as np
        >>> from continuum import ClassIncremental
        >>> from continuum.datasets import InMemoryDataset
        >>> images, labels = np.zeros((9, 8, 8, 3), np.uint8), np.array([0] * 6 + [1] * 3)
        >>> scenario = ClassIncremental(InMemoryDataset(images, labels), increment=2)
        >>> for x, y, t in balanced_loader(scenario[0]):
        ...     print(y.bincount())
        tensor([3, 3])
    """
    if not hasattr(taskset, "_y") or not hasattr(taskset, "add_samples"):
        raise ConfigurationError(
            f"taskset is a {type(taskset).__name__}: must be a Continuum task set. Pass an element "
            f"of a scenario."
        )
    joined = taskset
    if memory is not None and len(memory):
        x, y, t = memory.get()
        if not set(y.tolist()) <= set(taskset._y.tolist()):
            joined = copy.copy(taskset)
            joined.add_samples(x, y, t)
    if balanced:
        chosen = balanced_indices(torch.as_tensor(joined._y), per_class, generator)
    else:
        chosen = torch.randperm(len(joined._y), generator=generator)
    return DataLoader(Subset(joined, chosen.tolist()), batch_size=batch_size, **options)
