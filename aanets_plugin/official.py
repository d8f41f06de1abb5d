"""The α update of the authors' code, for comparison with published numbers.

Each level has one scalar a: the first branch has weight a, the second 1 − a. The gradient of a is
never cleared. Each backward pass of the lower level adds to it, and so does each balanced batch.
After each balanced batch there is one SGD step with momentum and weight decay on a. The momentum is
reset in each phase, the gradient is not.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from aanets_plugin.alpha_gradient import loss_and_gradients, only_alpha_learns
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import ConfigurationError, NonFiniteLossError
from aanets_plugin.levels import levels, named_levels

_DEFAULTS = AANetConfig(official=True)


class OfficialBilevel(BilevelStrategy):
    """BilevelStrategy with the authors' update and their hyperparameters as defaults.

    In an incremental phase α collects gradients in the backward pass of the host. The optimizer of
    the host must not hold α. One over `model.parameters()` or `parameter_groups(model)` does not.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = _DEFAULTS.lr,
        momentum: float = _DEFAULTS.momentum,
        weight_decay: float = 5e-4,
        **options: Any,
    ) -> None:
        for level in levels(model):
            if len(level.blocks) != 2:
                raise ConfigurationError(
                    f"{level.name} has the branches {level.blocks}: the official update needs two. "
                    f"Convert the model with two blocks."
                )
        super().__init__(model, lr=lr, momentum=momentum, normalize=False, **options)
        self.weight_decay = weight_decay

    def _phase_changed(self) -> None:
        for level in levels(self.model):
            if level.alpha is not None:
                level.alpha.requires_grad_(self.in_phase)

    def state_dict(self) -> dict[str, Any]:
        alphas = {name: level.alpha for name, level in named_levels(self.model).items()}
        gradients = {name: alpha.grad for name, alpha in alphas.items() if alpha is not None}
        return {**super().state_dict(), "gradients": gradients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, level in named_levels(self.model).items():
            gradient = state["gradients"].get(name)
            if level.alpha is not None and gradient is not None:
                level.alpha.grad = gradient.to(level.alpha)

    def _update(self, batches: Iterable[Any]) -> float:
        losses = []
        named = named_levels(self.model)
        with only_alpha_learns(self.model) as alphas:
            for batch in batches:
                loss, parts = loss_and_gradients(self.model, self.loss_fn, batch, alphas)
                gradients = torch.stack(parts)
                if dist.is_available() and dist.is_initialized():
                    dist.all_reduce(gradients)
                    gradients /= dist.get_world_size()
                if not torch.isfinite(loss) or not torch.isfinite(gradients).all():
                    raise NonFiniteLossError(
                        f"The balanced loss or its gradient is not finite (loss {loss.item()}). α "
                        f"was not changed by this batch. Lower the learning rate of the network."
                    )
                losses.append(loss.item())
                for name, alpha, gradient in zip(named, alphas, gradients, strict=True):
                    self._step(alpha, name, gradient)
        if not losses:
            raise ConfigurationError("The balanced loader has no batch. Pass one that has samples.")
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
