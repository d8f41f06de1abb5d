"""Attachment: α updates in a training loop that nobody edits, by counting optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

LoaderSource = Iterable[Any] | Callable[[], Iterable[Any]]


class _Strategy(Protocol):
    def after_epoch(self, balanced_loader: LoaderSource | None = None) -> float | None: ...

    def detach(self) -> None: ...


class Attachment:
    """The hook that `BilevelStrategy.attach` sets; leaving its `with` block removes it."""

    def __init__(
        self,
        strategy: _Strategy,
        balanced_loader: LoaderSource,
        every: int,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self.strategy = strategy
        self.balanced_loader = balanced_loader
        self.every = every
        self.steps = 0
        if optimizer is None:
            self._handle = register_optimizer_step_post_hook(self._count)
        else:
            self._handle = optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            self.strategy.after_epoch(self.balanced_loader)

    def remove(self) -> None:
        self._handle.remove()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: Any) -> None:
        self.strategy.detach()
