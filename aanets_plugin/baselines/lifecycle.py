"""The steps of a method's life, for every training loop.

The experiment runner and the Avalanche strategies call these functions: build the network, copy the
teacher, grow the head, compute the loss, compute features, fine-tune on exemplars. Herding is
`aanets_plugin.herd_classes`, and prediction by the nearest mean is in `prediction.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.method import Method, Output
from aanets_plugin.baselines.network import IncrementalNet, feature_count, without_head
from aanets_plugin.baselines.precision import at_least_float32
from aanets_plugin.modes import evaluating
from aanets_plugin.optim import parameter_groups

Backbone = nn.Module | Callable[[], nn.Module]
Net = TypeVar("Net", bound=IncrementalNet)


def build_network(
    backbone: Backbone, method: Method, classes: int, input_shape: tuple[int, ...]
) -> IncrementalNet:
    """Return the plain network of the first phase.

    `backbone` is a module, which is copied, or a function that returns one.
    """
    model = copy.deepcopy(backbone) if isinstance(backbone, nn.Module) else backbone()
    body = without_head(model, input_shape)
    return IncrementalNet(body, method.head(feature_count(body, input_shape), classes))


def teacher_of(net: Net) -> Net:
    """Return a frozen copy of the network in eval mode, the teacher of the next phase."""
    return copy.deepcopy(net).requires_grad_(False).eval()


def grow_head(
    method: Method,
    net: IncrementalNet,
    new: int,
    samples: Callable[[], tuple[Tensor, Tensor]] | None = None,
    generator: torch.Generator | None = None,
) -> None:
    """Replace the head of `net` by one with `new` more classes.

    Args:
        samples: Returns features and labels (columns of the logits) of the new classes' samples.
            It is called only if the method imprints. Default: the new weights are random.
        generator: Random numbers of the imprinting.
    """
    device = next(net.parameters()).device
    features, labels = samples() if samples is not None and method.imprints else (None, None)
    net.fc = method.grow(net.fc, new, features, labels, generator).to(device)


# -- losses ----------------------------------------------------------------------------------------


class MethodLoss(nn.Module):
    """The method's loss of a batch as a module, so that DDP sees a single forward."""

    def __init__(self, method: Method, net: IncrementalNet, teacher: IncrementalNet | None) -> None:
        super().__init__()
        self.method = method
        self.net = net
        self._teacher = [teacher]  # in a list, so that it is not registered as a submodule

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (teacher,) = self._teacher
        out = self.method.observe(self.net, x, maps=teacher is not None)
        return loss_of_output(self.method, self.net, out, x, y, teacher)


def loss_of_output(
    method: Method,
    net: IncrementalNet,
    out: Output,
    x: Tensor,
    y: Tensor,
    teacher: IncrementalNet | None,
) -> Tensor:
    """Return the method's loss for an output of `net`; runs the teacher on `x`, if there is one."""
    taught = None
    if teacher is not None:
        with torch.no_grad():
            taught = method.observe(teacher, x, maps=True)
    return method.loss(net.fc, out, y, taught)


class HeadLoss(nn.Module):
    """The loss for training the head alone: the backbone runs in eval mode and without a graph."""

    def __init__(self, method: Method, net: IncrementalNet) -> None:
        super().__init__()
        self.method = method
        self.fc = net.fc
        self._net = [net]  # in a list, so that the backbone is not registered as a submodule

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (net,) = self._net
        with torch.no_grad(), evaluating(net):
            features = net.features(x)
        out = Output(features, *self.method.score(self.fc, features))
        return self.method.loss(self.fc, out, y, None)


# -- passes over data ------------------------------------------------------------------------------


class Features(NamedTuple):
    """Features of samples; the fields are the arguments of `class_means`."""

    features: Tensor
    labels: Tensor
    flipped: Tensor | None


@torch.no_grad()
def features_of(
    net: IncrementalNet,
    batches: Iterable[Sequence[Any]],
    *,
    flip: bool = False,
    gather: Callable[[list[Tensor]], Sequence[Tensor]] = list,
) -> Features:
    """Compute features of all samples in eval mode, on the CPU and in order.

    Args:
        batches: Batches `(x, y, …)`.
        flip: Also compute the features of the mirrored images.
        gather: Collects the tensors of a batch from all processes.
    """
    device = next(net.parameters()).device
    columns: list[list[Tensor]] = [[], [], []]
    with evaluating(net):
        for x, y, *_ in batches:
            x = x.to(device)
            parts = [at_least_float32(net.features(x)), y]
            if flip:
                parts.append(at_least_float32(net.features(x.flip(-1))))
            for column, part in zip(columns, gather(parts), strict=False):
                column.append(part.cpu())
    features, labels, flipped = columns
    return Features(
        torch.cat(features), torch.cat(labels).long(), torch.cat(flipped) if flip else None
    )


def sgd(
    module: nn.Module, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """SGD on the parameters of `module` that require a gradient; φ has no weight decay."""
    return torch.optim.SGD(parameter_groups(module, lr, weight_decay), lr=lr, momentum=momentum)


def train_epoch(
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    lr: float,
    batches: Iterable[Sequence[Any]],
    backward: Callable[[Tensor], Any] = Tensor.backward,
) -> list[Tensor]:
    """Take one optimizer step per batch `(x, y, …)`; returns the losses."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    losses = []
    for x, y, *_ in batches:
        optimizer.zero_grad()
        value = loss(x, y)
        backward(value)
        optimizer.step()
        losses.append(value.detach())
    return losses


def cosine_factor(epoch: int, epochs: int) -> float:
    """Return the learning rate factor of a cosine schedule from 1 to 0, `epoch` from 0.

    Example:
        >>> [round(cosine_factor(epoch, 4), 3) for epoch in range(4)]
        [1.0, 0.854, 0.5, 0.146]
    """
    return (1 + math.cos(math.pi * epoch / epochs)) / 2


# -- fine-tuning -----------------------------------------------------------------------------------


def fine_tune(
    method: Method,
    net: IncrementalNet,
    prepare: Callable[[nn.Module, nn.Module, float], tuple[Any, Any]],
    train: Callable[[Any, Any, float, int], object],
    progress: Callable[[range], Iterable[int]] = iter,
) -> None:
    """Train on exemplars as `method.fine_tuning` says; does nothing if the method has none.

    All weights of the head learn, also those that the method freezes otherwise. The learning rate
    follows a cosine schedule.

    Args:
        prepare: `prepare(loss, module, lr)` returns the loss module, ready to train, and an
            optimizer on the parameters of `module`.
        train: `train(loss, optimizer, lr, epoch)` trains one epoch on the exemplars.
        progress: Wraps the epochs, for a progress bar.
    """
    tuning = method.fine_tuning
    if tuning is None:
        return
    with requires_grad(net.fc.parameters(), True):
        if tuning.head_only:
            loss, optimizer = prepare(HeadLoss(method, net), net.fc, tuning.lr)
        else:
            loss, optimizer = prepare(MethodLoss(method, net, None), net, tuning.lr)
        for epoch in progress(range(tuning.epochs)):
            train(loss, optimizer, tuning.lr * cosine_factor(epoch, tuning.epochs), epoch)


@contextmanager
def requires_grad(parameters: Iterable[nn.Parameter], value: bool) -> Iterator[None]:
    """Set `requires_grad` of the parameters in a `with` block and restore it afterwards."""
    flags = [(parameter, parameter.requires_grad) for parameter in parameters]
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(value)
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
