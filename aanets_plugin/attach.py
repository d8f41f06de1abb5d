"""Attachment: α updates for a training loop that cannot be edited."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from aanets_plugin.checks import positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.levels import levels

if TYPE_CHECKING:
    from aanets_plugin.bilevel import BilevelStrategy

LoaderSource = Iterable[Any] | Callable[[], Iterable[Any]]
"""A loader, or a function that makes one."""

OptimizerChoice = Optimizer | Callable[[Optimizer], bool]
"""An optimizer, or a function that says whether the steps of an optimizer count."""


class Attachment:
    """Calls `after_epoch` after every `every` optimizer steps until it is removed.

    Made by `BilevelStrategy.attach`. Leaving the `with` block removes the hook. `steps` is the
    number of optimizer steps that were counted.
    """

    def __init__(
        self,
        strategy: BilevelStrategy,
        balanced_loader: LoaderSource,
        every: int | Callable[[], int],
        optimizer: OptimizerChoice | None,
    ) -> None:
        if not callable(every):
            every = positive(every, "every")
        if not (optimizer is None or callable(optimizer) or isinstance(optimizer, Optimizer)):
            raise ConfigurationError(
                f"optimizer={optimizer!r:.80}: must be a torch.optim.Optimizer, or a function "
                f"that says whether the steps of an optimizer count."
            )
        self.strategy = strategy
        self.balanced_loader = balanced_loader
        self.every = every
        self.optimizer = optimizer
        self.steps = 0
        self._found = False  # whether the optimizer was found, not given
        self._later: weakref.ref[Optimizer] | None = None
        self._handle = register_optimizer_step_post_hook(self._count)

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._counts(optimizer):
            return
        if callable(self.every):
            self.every = positive(self.every(), "every()")
        self.steps += 1
        if self.steps % self.every == 0:
            self.strategy.after_epoch(self.balanced_loader)

    def _counts(self, optimizer: Optimizer) -> bool:
        if isinstance(self.optimizer, Optimizer):
            if self._found and optimizer is not self.optimizer:
                self._warn_if_there_are_many(optimizer)
            return optimizer is self.optimizer
        if not trains_levels(optimizer, self.strategy.model):
            return False
        if self.optimizer is not None:
            return self.optimizer(optimizer)
        self.optimizer, self._found = optimizer, True
        return True

    def _warn_if_there_are_many(self, optimizer: Optimizer) -> None:
        """Warn about a third optimizer: a fine-tuning has one, so each epoch may have its own."""
        if self._later is not None and self._later() is optimizer:
            return
        if not trains_levels(optimizer, self.strategy.model):
            return
        if self._later is not None:
            self._found = False  # warn once
            warnings.warn(
                f"At least three optimizers train the backbone in phase "
                f"{self.strategy.phase_index}, and only the steps of the first are counted, so α "
                f"may have learned in the first epoch alone. If the loop makes an optimizer for "
                f"each epoch, pass optimizer=lambda optimizer: True to attach(), or call "
                f"after_epoch() yourself.",
                stacklevel=2,
            )
        self._later = weakref.ref(optimizer)

    def remove(self) -> None:
        """Remove the hook from the optimizers."""
        self._handle.remove()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: Any) -> None:
        self.strategy.detach()


def trains_levels(optimizer: Optimizer, model: nn.Module) -> bool:
    """Whether the optimizer has a parameter of an adaptive level of `model` that learns."""
    learning = {id(p) for level in levels(model) for p in level.parameters() if p.requires_grad}
    return any(id(p) in learning for group in optimizer.param_groups for p in group["params"])
