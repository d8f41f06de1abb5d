"""The gradient of the balanced loss with respect to α (Eq. 8). Nothing else is changed."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.errors import AANetError, ConfigurationError, NonFiniteLossError
from aanets_plugin.levels import levels, named_levels
from aanets_plugin.modes import evaluating
from aanets_plugin.random_state import random_state_kept
from aanets_plugin.ranks import failing_together, sum_over_ranks

LossFunction = Callable[[nn.Module, Any], Tensor]


def mean_gradients(
    model: nn.Module, loss_fn: LossFunction, batches: Iterable[Any]
) -> tuple[float, list[Tensor]]:
    """Return the mean loss over all batches and ranks, and its gradient per level."""
    with only_alpha_learns(model) as alphas:
        mean = mean_over_ranks(model, loss_fn, batches, alphas)
    if mean is None:
        raise no_batch()
    return mean


def mean_over_ranks(
    model: nn.Module, loss_fn: LossFunction, batches: Iterable[Any], alphas: list[Tensor]
) -> tuple[float, list[Tensor]] | None:
    """Return the mean loss over all batches and ranks, and its gradient per level.

    A rank may have fewer batches than another, or none. None if all have none. If `batches` or
    `loss_fn` fails on one rank, all ranks raise an error.
    """
    sizes = [len(alpha) for alpha in alphas]
    total = alphas[0].new_zeros(sum(sizes) + 2, dtype=torch.float64)
    with failing_together(total.device):
        for batch in batches:
            loss, parts = loss_and_gradients(model, loss_fn, batch, alphas)
            count = batch_size(batch)
            flat = torch.cat([loss.detach().reshape(1), *parts]).double() * count
            total += torch.cat([flat, flat.new_tensor([count])])
    sum_over_ranks(total)
    if not total[-1]:
        return None
    mean = total[:-1] / total[-1]
    if not torch.isfinite(mean).all():
        raise NonFiniteLossError(
            f"The balanced loss or its gradient is not finite (loss {mean[0].item()}). α was not "
            f"changed. Check the training loss and lower the learning rate of the network."
        )
    return mean[0].item(), list(torch.split(mean[1:], sizes))


def no_batch() -> ConfigurationError:
    """Return the error about balanced data without a batch."""
    return ConfigurationError("The balanced loader has no batch. Pass one that has samples.")


def loss_and_gradients(
    model: nn.Module, loss_fn: LossFunction, batch: Any, alphas: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of one batch and its gradient per level."""
    where = (
        f"loss_fn(model, batch) gets the model that was passed to BilevelStrategy, "
        f"a {type(model).__name__}, in eval mode"
    )
    try:
        loss = loss_fn(model, batch)
    except Exception as error:
        if not isinstance(error, AANetError) and hasattr(error, "add_note"):  # from Python 3.11
            error.add_note(f"{where}, and a batch of the balanced loader.")
        raise
    gradients: Sequence[Tensor | None] = [None]
    if isinstance(loss, Tensor) and loss.requires_grad:
        gradients = torch.autograd.grad(loss, alphas, allow_unused=True)
    known = [gradient for gradient in gradients if gradient is not None]
    if len(known) < len(alphas):
        unused = [
            name
            for name, gradient in itertools.zip_longest(named_levels(model), gradients)
            if gradient is None
        ]
        raise ConfigurationError(
            f"The loss of the balanced batch does not depend on α of {', '.join(unused)}. {where}: "
            f"compute the loss from its outputs. They must not be detached or computed under "
            f"torch.no_grad(). If only the backbone was converted, pass the whole network, with "
            f"the head, to BilevelStrategy."
        )
    return loss, known


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


def batch_size(batch: Any) -> int:
    """Return the length of the first tensor in a batch; 1 if it is empty or there is none."""
    if isinstance(batch, Tensor):
        return max(1, batch.shape[0]) if batch.dim() else 1
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
