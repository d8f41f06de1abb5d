"""What Mnemonics and PODNet do with exemplars when an experience ends: learn them, and on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset
from avalanche.benchmarks.utils.utils import concat_datasets
from torch import Tensor
from torch.utils.data import DataLoader

from aanets_plugin.baselines.method import Method, Output
from aanets_plugin.modes import evaluating
from aanets_plugin.optim import parameter_groups

from .network import BenchmarkNet


def learn_exemplars(
    method: Method,
    net: BenchmarkNet,
    groups: dict[int, Any],
    new: Collection[int],
    validation: DataLoader[Any],
    transform: Callable[[Tensor], Tensor] | None,
) -> None:
    """Put images learned by `method.refine` in place of the exemplars of the new classes.

    `groups` has exemplars by class id. Learned images are tensors as `net` takes them, within the
    range of the old ones by channel; `transform` is applied to them in training.
    """
    herded = concat_datasets([group for label, group in groups.items() if label in new])
    samples = [(torch.as_tensor(x), int(y), int(t[0]) if t else 0) for x, y, *t in herded.eval()]
    images = torch.stack([x for x, _, _ in samples])
    labels = torch.tensor([y for _, y, _ in samples])
    low, high = images.amin((0, 2, 3), keepdim=True)[0], images.amax((0, 2, 3), keepdim=True)[0]
    kept = _make_taskaware_tensor_classification_dataset(
        method.refine(net, images, labels, validation, (low, high)),
        labels,
        task_labels=[task for _, _, task in samples],
        transform_groups={"train": (transform, None), "eval": (None, None)},
    )
    for label in sorted(set(labels.tolist())):
        groups[label] = kept.subset((labels == label).nonzero().flatten().tolist())


def fine_tune(
    method: Method, net: BenchmarkNet, loader: DataLoader[Any], settings: Mapping[str, Any]
) -> None:
    """Train on exemplars alone as `method.fine_tuning` says: SGD, its lr along a cosine to 0.

    All of the head learns then; if nothing else does, the backbone keeps its statistics as well.
    Momentum and weight decay are those in `settings`, a parameter group of the main optimizer.
    """
    tuning = method.fine_tuning
    assert tuning is not None
    fixed = [p for p in net.fc.parameters() if not p.requires_grad]
    for parameter in fixed:
        parameter.requires_grad_(True)
    learns = net.fc if tuning.head_only else net
    groups = parameter_groups(learns, tuning.lr, settings.get("weight_decay", 0.0))
    optimizer = torch.optim.SGD(groups, momentum=settings.get("momentum", 0.9))
    device = net.columns.device
    net.train()
    for epoch in range(tuning.epochs):
        for group in optimizer.param_groups:
            group["lr"] = tuning.lr * (1 + math.cos(math.pi * epoch / tuning.epochs)) / 2
        for x, y, *_ in loader:
            out = _observe(method, net, x.to(device), tuning.head_only)
            loss = method.loss(net.fc, out, net.columns[y.to(device)], None)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for parameter in fixed:
        parameter.requires_grad_(False)


def _observe(method: Method, net: BenchmarkNet, x: Tensor, head_only: bool) -> Output:
    if not head_only:
        return method.observe(net, x)
    with torch.no_grad(), evaluating(net):
        features = net.features(x)
    return Output(features, *method.score(net.fc, features))
