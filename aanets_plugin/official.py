"""The authors' α update as their LUCIR loop runs it, for comparison with published numbers.

One scalar a per level weighs the first branch, 1 − a the second. Its gradient is never cleared:
each backward of the lower level adds to it, each balanced batch adds to it, and after each
balanced batch follows one SGD step with momentum and weight decay on a. Momentum starts anew with
each phase, the gradient does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from aanets_plugin.bilevel import BilevelStrategy, alpha_alone
from aanets_plugin.errors import ConfigurationError, NonFiniteLossError
from aanets_plugin.levels import levels


class OfficialBilevel(BilevelStrategy):
    """lr 1e-8, momentum 0.9, weight decay 5e-4 on a, gradients accumulated over both levels.

    In an incremental phase α asks for a gradient in the host's own backward. The host's optimizer
    must leave it alone, as one over `model.parameters()` or `parameter_groups(model)` does.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = 1e-8,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        **options: Any,
    ) -> None:
        super().__init__(model, lr=lr, momentum=momentum, normalize=False, **options)
        self.weight_decay = weight_decay
        for level in levels(self.model):
            if len(level.blocks) != 2:
                raise ConfigurationError(
                    f"the official update weighs two branches, {level.name} has {level.blocks}."
                )

    def begin_phase(self) -> None:
        super().begin_phase()
        if not self.in_base_phase:
            for level in levels(self.model):
                assert level.alpha is not None
                level.alpha.requires_grad_(True)

    def end_phase(self) -> None:
        super().end_phase()
        for level in levels(self.model):
            assert level.alpha is not None
            level.alpha.requires_grad_(False)

    def _update(self, batches: Iterable[Any]) -> float:
        losses = []
        for batch in batches:
            with alpha_alone(self.model) as alphas:
                loss = self.loss_fn(self.model, batch)
                gradients = torch.autograd.grad(loss, alphas)
            if not torch.isfinite(loss):
                raise NonFiniteLossError(f"the balanced loss is {loss.item()}; α is as before it.")
            losses.append(loss.item())
            for level, gradient in zip(levels(self.model), gradients, strict=True):
                self._step(level.alpha, level.name, gradient)
        if not losses:
            raise ConfigurationError("the balanced loader gave no batch; α needs data to learn on.")
        return sum(losses) / len(losses)

    @torch.no_grad()
    def _step(self, alpha: Any, name: str, gradient: torch.Tensor) -> None:
        alpha.grad = gradient if alpha.grad is None else alpha.grad + gradient
        slope = alpha.grad[0] - alpha.grad[1] + self.weight_decay * alpha[0]
        if name in self.step.velocity:
            slope = self.step.momentum * self.step.velocity[name] + slope
        self.step.velocity[name] = slope
        plastic = (alpha[0] - self.current_lr * slope).clamp(0, 1)
        alpha.copy_(torch.stack([plastic, 1 - plastic]))
