"""The gradient of the balanced loss with respect to α (Eq. 8). Nothing else is changed."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.errors import ConfigurationError, NonFiniteLossError
from aanets_plugin.levels import levels
from aanets_plugin.modes import evaluating
from aanets_plugin.random_state import random_state_kept

LossFunction = Callable[[nn.Module, Any], Tensor]


def mean_gradients(
    model: nn.Module, loss_fn: LossFunction, batches: Iterable[Any]
) -> tuple[float, list[Tensor]]:
    """Return the mean loss over all batches and ranks, and its gradient per level."""
    with only_alpha_learns(model) as alphas:
        sizes = [len(alpha) for alpha in alphas]
        total = alphas[0].new_zeros(sum(sizes) + 2, dtype=torch.float64)
        for batch in batches:
            loss = loss_fn(model, batch)
            count = batch_size(batch)
            parts = torch.autograd.grad(loss, alphas)
            flat = torch.cat([loss.detach().reshape(1), *parts]).double() * count
            total += torch.cat([flat, flat.new_tensor([count])])
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(total)  # once, so that a rank without batches does not block the others
    if not total[-1]:
        raise ConfigurationError("The balanced loader has no batch. Pass one that has samples.")
    mean = total[:-1] / total[-1]
    if not torch.isfinite(mean).all():
        raise NonFiniteLossError(
            f"The balanced loss or its gradient is not finite (loss {mean[0].item()}). α was not "
            f"changed. Check the training loss and lower the learning rate of the network."
        )
    return mean[0].item(), list(torch.split(mean[1:], sizes))


@contextmanager
def only_alpha_learns(model: nn.Module) -> Iterator[list[Tensor]]:
    """Put the model in eval mode and let only α require a gradient; gives the α of each level.

    Modes, `requires_grad` flags and the random states of torch, numpy and Python are restored
    afterwards.
    """
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    alphas = [level.alpha for level in levels(model) if level.alpha is not None]
    asked = [alpha.requires_grad for alpha in alphas]
    try:
        with evaluating(model), random_state_kept(), torch.enable_grad():
            for parameter in learning:
                parameter.requires_grad_(False)
            for alpha in alphas:
                alpha.requires_grad_(True)
            yield alphas
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
        for alpha, flag in zip(alphas, asked, strict=True):
            alpha.requires_grad_(flag)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean cross-entropy of a batch `(x, y, …)`. This is the default `loss_fn`."""
    if not isinstance(batch, (tuple, list)) or not all(
        isinstance(item, Tensor) for item in (*batch, None)[:2]
    ):
        raise ConfigurationError(
            f"The balanced batch is a {type(batch).__name__}: must be (x, y, …) with tensors x and "
            f"y. For other batches pass loss_fn(model, batch) to BilevelStrategy."
        )
    x, y = batch[0], batch[1]
    device = next(itertools.chain(model.parameters(), model.buffers())).device
    logits = logits_of(model(x.to(device, non_blocking=True)))
    classes = logits.shape[1]
    if not y.is_cuda and len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ConfigurationError(
            f"The balanced batch has labels from {int(y.min())} to {int(y.max())}, but the model "
            f"has {classes} outputs. Map the labels as the training loop does, or pass a loss_fn."
        )
    return F.cross_entropy(logits, y.to(device, non_blocking=True))


def logits_of(outputs: Any) -> Tensor:
    """Return the logits in a model's output: the output itself, or its entry `"logits"`."""
    logits = outputs.get("logits") if isinstance(outputs, dict) else outputs
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise ConfigurationError(
            f"The model returns a {type(outputs).__name__}: must be logits [batch, classes] or a "
            f"dict with 'logits'. For other outputs pass a loss_fn."
        )
    return logits


def batch_size(batch: Any) -> int:
    """Return the length of the first tensor in a batch, or 1 if there is no tensor."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif dataclasses.is_dataclass(batch):
        batch = vars(batch).values()
    elif not isinstance(batch, (tuple, list)):
        return 1
    containers = (Tensor, Mapping, tuple, list)
    return next((batch_size(item) for item in batch if isinstance(item, containers)), 1)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DataParallel, DDP and torch.compile wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
        if inner is None and isinstance(model, wrappers):
            inner = model.module
        if inner is None:
            return model
        model = inner
