"""Attachment: α updates for a training loop that cannot be edited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from aanets_plugin.levels import levels

if TYPE_CHECKING:
    from aanets_plugin.bilevel import BilevelStrategy

LoaderSource = Iterable[Any] | Callable[[], Iterable[Any]]
"""A loader, or a function that makes one."""


class Attachment:
    """Calls `after_epoch` after every `every` optimizer steps until it is removed.

    Made by `BilevelStrategy.attach`. Leaving the `with` block removes the hook.
    """

    def __init__(
        self,
        strategy: BilevelStrategy,
        balanced_loader: LoaderSource,
        every: int | Callable[[], int],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self.strategy = strategy
        self.balanced_loader = balanced_loader
        self.every = every
        self.optimizer = optimizer
        self.steps = 0
        self._handle = register_optimizer_step_post_hook(self._count)

    def _count(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.optimizer is None and trains_levels(optimizer, self.strategy.model):
            self.optimizer = optimizer
        if optimizer is not self.optimizer:
            return
        if callable(self.every):
            self.every = self.every()
        self.steps += 1
        if self.steps % self.every == 0:
            self.strategy.after_epoch(self.balanced_loader)

    def remove(self) -> None:
        """Remove the hook from the optimizer."""
        self._handle.remove()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: Any) -> None:
        self.strategy.detach()


def trains_levels(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    """Whether the optimizer has a parameter of an adaptive level of `model` that learns."""
    learning = {id(p) for level in levels(model) for p in level.parameters() if p.requires_grad}
    return any(id(p) in learning for group in optimizer.param_groups for p in group["params"])
