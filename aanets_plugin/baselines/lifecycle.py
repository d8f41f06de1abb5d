"""The steps of a method's life that the experiment runner and the Avalanche strategies share.

Herding is `aanets_plugin.herd_classes`; prediction by the nearest mean is in `prediction.py`.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.method import FineTuning, Method, Output
from aanets_plugin.baselines.network import IncrementalNet, feature_count, without_head
from aanets_plugin.baselines.precision import at_least_float32
from aanets_plugin.modes import evaluating
from aanets_plugin.optim import parameter_groups

Backbone = nn.Module | Callable[[], nn.Module]
Net = TypeVar("Net", bound=IncrementalNet)


def build_network(
    backbone: Backbone, method: Method, classes: int, input_shape: tuple[int, ...]
) -> IncrementalNet:
    """Return the plain network of the first phase. A module is copied, a function is called."""
    model = copy.deepcopy(backbone) if isinstance(backbone, nn.Module) else backbone()
    body = without_head(model, input_shape)
    return IncrementalNet(body, method.head(feature_count(body, input_shape), classes))


def teacher_of(net: Net) -> Net:
    """Return a frozen copy of the network in eval mode, the teacher of the next phase."""
    return copy.deepcopy(net).requires_grad_(False).eval()


class Features(NamedTuple):
    """Features of samples; the fields are the arguments of `class_means`."""

    features: Tensor
    labels: Tensor
    flipped: Tensor | None = None


@torch.no_grad()
def features_of(
    net: IncrementalNet,
    batches: Iterable[Sequence[Any]],
    *,
    flip: bool = False,
    gather: Callable[[list[Tensor]], Sequence[Tensor]] = list,
) -> Features:
    """Compute the features of batches `(x, y, …)` in eval mode; the results are on the CPU.

    `flip=True` also computes those of mirrored images. `gather` joins a batch of all processes.
    """
    device = next(net.parameters()).device
    columns: list[list[Tensor]] = [[], [], []]
    with evaluating(net):
        for x, y, *_ in batches:
            images = [x.to(device)]
            images += [images[0].flip(-1)] if flip else []
            features, *flipped = (at_least_float32(net.features(image)) for image in images)
            for column, part in zip(columns, gather([features, y, *flipped]), strict=False):
                column.append(part.cpu())
    joined = [torch.cat(column) for column in columns if column]
    return Features(joined[0], joined[1].long(), *joined[2:])


def grow_head(
    method: Method,
    net: IncrementalNet,
    new: int,
    samples: Features | None = None,
    generator: torch.Generator | None = None,
) -> None:
    """Replace the head of `net` by one with `new` more classes.

    `samples` are those of the new classes, with columns of the logits as labels. Without them the
    new weights are random.
    """
    device = next(net.parameters()).device
    features, labels, _ = (None, None, None) if samples is None else samples
    net.fc = method.grow(net.fc, new, features, labels, generator).to(device)


class MethodLoss(nn.Module):
    """The method's loss of a batch as a module, so that DDP sees a single forward."""

    def __init__(self, method: Method, net: IncrementalNet, teacher: IncrementalNet | None) -> None:
        super().__init__()
        self.method = method
        self.net = net
        self._teacher = [teacher]  # in a list, so that it is not registered as a submodule

    def forward(self, x: Tensor, y: Tensor, out: Output | None = None) -> Tensor:
        """Return the loss. `out` is the network's output for `x`, if it is already computed."""
        (teacher,) = self._teacher
        if out is None:
            out = self.method.observe(self.net, x, maps=teacher is not None)
        taught = None
        if teacher is not None:
            with torch.no_grad():
                taught = self.method.observe(teacher, x, maps=True)
        return self.method.loss(self.net.fc, out, y, taught)


class HeadLoss(nn.Module):
    """The loss for training the head alone: the backbone runs in eval mode and without a graph."""

    def __init__(self, method: Method, net: IncrementalNet) -> None:
        super().__init__()
        self.method = method
        self.fc = net.fc
        self._net = [net]  # in a list, so that the backbone is not registered as a submodule

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the method's loss of a batch, without a teacher."""
        (net,) = self._net
        with torch.no_grad(), evaluating(net):
            features = net.features(x)
        out = Output(features, *self.method.score(self.fc, features))
        return self.method.loss(self.fc, out, y, None)


def sgd(module: nn.Module, momentum: float, weight_decay: float) -> torch.optim.Optimizer:
    """SGD on what learns in `module`, with no weight decay on φ. `train_epoch` sets its lr."""
    groups = parameter_groups(module, weight_decay=weight_decay)
    return torch.optim.SGD(groups, momentum=momentum)


def train_epoch(
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    lr: float,
    batches: Iterable[Sequence[Any]],
    backward: Callable[[Tensor], Any] = Tensor.backward,
) -> list[Tensor]:
    """Train on batches `(x, y, …)`, one optimizer step each, and return their losses."""
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
    """Return the learning rate factor of a cosine schedule; epochs count from 0."""
    return (1 + math.cos(math.pi * epoch / epochs)) / 2


@contextmanager
def fine_tuning(method: Method, net: IncrementalNet) -> Iterator[tuple[nn.Module, list[float]]]:
    """Prepare fine-tuning of the head on exemplars, as `method.fine_tuning` says.

    Returns the loss module, whose parameters are to be trained, and the learning rate of each
    epoch; there are no epochs if the method has no fine-tuning. In the `with` block all weights of
    the head require a gradient, also those that the method freezes.
    """
    tuning = method.fine_tuning or FineTuning(epochs=0, lr=0.0)
    rates = [tuning.lr * cosine_factor(epoch, tuning.epochs) for epoch in range(tuning.epochs)]
    with requires_grad(net.fc.parameters(), True):
        yield HeadLoss(method, net), rates


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
