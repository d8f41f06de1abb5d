"""Access to the exemplars that Avalanche's strategies and plugins store."""

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.training.plugins import AGEMPlugin, GEMPlugin
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

Key = tuple[int, int]
"""Task label and class label; in multi-task streams, each task may number classes from zero."""


class Samples(Dataset[tuple[Any, Tensor, Tensor]]):
    """An Avalanche dataset with samples (x, y, task label) and nothing else.

    DER's exemplars, for example, also contain logits, so they cannot be in a batch with new data.
    """

    def __init__(self, data: Any, keys: Sequence[Key] | None = None) -> None:
        self.data = data.train() if hasattr(data, "train") else data  # the training transforms
        self.keys = list(keys_of(data) if keys is None else keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[Any, Tensor, Tensor]:
        x, y, *_ = self.data[index]
        return x, torch.as_tensor(y), torch.as_tensor(self.keys[index][0])


def keys_of(data: Any) -> list[Key]:
    """Return the class of each sample, without loading the samples."""
    if not len(data):
        return []
    classes = [int(label) for label in data.targets]
    tasks = getattr(data, "targets_task_labels", None)
    numbers = [0] * len(classes) if tasks is None else [int(task) for task in tasks]
    return list(zip(numbers, classes, strict=True))


def owners_of(policy: ExemplarsBuffer, strategy: Any) -> list[Any]:
    """Return the plugins that fill this storage policy, and the strategy if it does."""
    holders = [*strategy.plugins, strategy]
    return [holder for holder in holders if getattr(holder, "storage_policy", None) is policy]


def fill(policy: ExemplarsBuffer, strategy: Any) -> None:
    """Add the data of the current experience to a storage policy.

    Avalanche 0.6 replaced `update` by `post_adapt`; older policies override `update` only.
    """
    if getattr(type(policy), "post_adapt", None) is getattr(ExemplarsBuffer, "post_adapt", None):
        policy.update(strategy)
    else:
        policy.post_adapt(strategy, strategy.experience)


def find_memory(strategy: Any) -> tuple[str, list[Samples]] | None:
    """Return a description and the exemplars of the strategy's memory; None if it has none."""
    for holder in (*strategy.plugins, strategy):
        name = type(holder).__name__
        policy = getattr(holder, "storage_policy", None)
        if isinstance(policy, ExemplarsBuffer):
            return f"the storage policy of {name}", [Samples(policy.buffer)]
        if isinstance(holder, AGEMPlugin):
            return f"the memory of {name}", [Samples(buffer) for buffer in holder.buffers]
        if isinstance(holder, GEMPlugin):
            return f"the memory of {name}", _tensors_of(holder)
    return None


def _tensors_of(gem: GEMPlugin) -> list[Samples]:
    parts = []
    for experience, x in gem.memory_x.items():
        y, tasks = gem.memory_y[experience], gem.memory_tid[experience]
        keys = list(zip(tasks.tolist(), y.tolist(), strict=True))
        parts.append(Samples(TensorDataset(x, y), keys))
    return parts
