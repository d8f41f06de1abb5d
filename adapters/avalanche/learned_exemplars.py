"""Learned exemplars (Mnemonics) in an Avalanche memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset
from avalanche.benchmarks.utils.utils import concat_datasets
from torch import Tensor
from torch.utils.data import DataLoader

from aanets_plugin.baselines.method import Method

from .network import BenchmarkNet


def learn_exemplars(
    method: Method,
    net: BenchmarkNet,
    groups: dict[int, Any],
    new: Collection[int],
    validation: DataLoader[Any],
    transform: Callable[[Tensor], Tensor] | None,
) -> None:
    """Replace the exemplars of the new classes by images learned with `method.refine`.

    The learned images are tensors, inputs of `net`, with pixels in the range of the old ones by
    channel.

    Args:
        groups: Exemplars by class id, changed in place.
        new: The new class ids.
        validation: Data of the new classes.
        transform: Applied to the learned images in training.
    """
    herded = concat_datasets([group for label, group in groups.items() if label in new])
    samples = [(torch.as_tensor(x), int(y), int(t[0]) if t else 0) for x, y, *t in herded.eval()]
    images = torch.stack([x for x, _, _ in samples])
    labels = torch.tensor([y for _, y, _ in samples])
    low, high = images.amin((0, 2, 3), keepdim=True)[0], images.amax((0, 2, 3), keepdim=True)[0]
    learned = _make_taskaware_tensor_classification_dataset(
        method.refine(net, images, labels, validation, (low, high)),
        labels,
        task_labels=[task for _, _, task in samples],
        transform_groups={"train": (transform, None), "eval": (None, None)},
    )
    for label in sorted(set(labels.tolist())):
        groups[label] = learned.subset((labels == label).nonzero().flatten().tolist())
