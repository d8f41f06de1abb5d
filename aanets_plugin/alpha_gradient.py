"""The gradient of the upper level (Eq. 8): by α alone, with everything else left as it was."""

from __future__ import annotations

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
    """The mean loss over all samples of all batches and ranks, and its gradient by each α."""
    with alpha_alone(model) as alphas:
        sizes = [len(alpha) for alpha in alphas]
        total = alphas[0].new_zeros(sum(sizes) + 2, dtype=torch.float64)
        for batch in batches:
            loss = loss_fn(model, batch)
            count = batch_size(batch)
            parts = torch.autograd.grad(loss, alphas)
            flat = torch.cat([loss.detach().reshape(1), *parts]).double() * count
            total += torch.cat([flat, flat.new_tensor([count])])
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(total)  # a rank without a batch adds nothing, and the others do not wait
    if not total[-1]:
        raise ConfigurationError("the balanced loader gave no batch; α needs data to learn on.")
    mean = total[:-1] / total[-1]
    if not torch.isfinite(mean).all():
        raise NonFiniteLossError(
            f"the balanced loss or its gradient is not finite (loss {mean[0].item()}); α is as "
            f"before. Look at the training loss and the learning rate of the lower level."
        )
    return mean[0].item(), list(torch.split(mean[1:], sizes))


@contextmanager
def alpha_alone(model: nn.Module) -> Iterator[list[Tensor]]:
    """Eval mode, and nothing but the α of each level asks for a gradient.

    All flags and the random states of torch, numpy and Python are given back as they were.
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
    """The default loss: mean cross-entropy of a batch `(x, y, …)`."""
    if not isinstance(batch, (tuple, list)) or not all(
        isinstance(item, Tensor) for item in (*batch, None)[:2]
    ):
        raise ConfigurationError(
            f"a balanced batch is a {type(batch).__name__}; expected (x, y, …). For other batches "
            f"give BilevelStrategy a loss_fn(model, batch)."
        )
    x, y = batch[0], batch[1]
    device = next(itertools.chain(model.parameters(), model.buffers())).device
    logits = logits_of(model(x.to(device, non_blocking=True)))
    classes = logits.shape[1]
    if not y.is_cuda and len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ConfigurationError(
            f"a balanced batch has labels from {int(y.min())} to {int(y.max())}, the model has "
            f"{classes} outputs. Map the labels as the training loop does, or give a loss_fn."
        )
    return F.cross_entropy(logits, y.to(device, non_blocking=True))


def logits_of(outputs: Any) -> Tensor:
    """The logits in a model's output, which are it or are under `"logits"`."""
    logits = outputs.get("logits") if isinstance(outputs, dict) else outputs
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise ConfigurationError(
            f"the model gives a {type(outputs).__name__}; expected logits [batch, classes] or a "
            f"dict with 'logits'. For other outputs give a loss_fn."
        )
    return logits


def batch_size(batch: Any) -> int:
    """The length of the first tensor in a batch; 1, so equal weights, where none is found."""
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
    """The model inside DataParallel, DDP and torch.compile, in any nesting."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
        if inner is None and isinstance(model, wrappers):
            inner = model.module
        if inner is None:
            return model
        model = inner
