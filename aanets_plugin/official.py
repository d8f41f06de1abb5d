"""The α update of the authors' code, for comparison with published numbers.

Each level has one scalar a: the stable branch has weight a, the plastic one 1 − a. After each
balanced batch there is one SGD step with momentum and weight decay on a. The momentum is reset in
each phase. Their two training loops differ in the gradient of a:

    "lucir"  It is never cleared. Each backward pass of the lower level adds to it, and so does each
             balanced batch, over all phases.
    "icarl"  It is cleared before each balanced batch.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from aanets_plugin.alpha_gradient import mean_over_ranks, no_batch, only_alpha_learns
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.levels import levels, named_levels
from aanets_plugin.ranks import several_ranks, sum_over_ranks
from aanets_plugin.scaling import scaled_layers

_DEFAULTS = AANetConfig(official="lucir")


class OfficialBilevel(BilevelStrategy):
    """BilevelStrategy with the authors' update and their hyperparameters as defaults.

    With the "lucir" loop, α collects gradients in the backward pass of the host. The optimizer of
    the host must not hold α. One over `model.parameters()` or `parameter_groups(model)` does not.

    Args:
        loop: The authors' loop to follow, "lucir" or "icarl".
        weight_decay: Weight decay of α.
        phi_decay: Weight decay that pulls φ towards 0, as in the authors' code, where it is 5e-4.
            It acts in the phases, in the steps of every optimizer that holds φ, and replaces the
            weight decay that the optimizer itself has for φ. Default: the optimizer's own, which
            pulls φ to 1. It is exact for optimizers that add the decay to the gradient, as SGD.
        options: Other options of `BilevelStrategy`. The authors divide the step size of α by 10
            where they divide the learning rate of the network; pass such a `schedule` for that.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = _DEFAULTS.lr,
        momentum: float = _DEFAULTS.momentum,
        weight_decay: float = 5e-4,
        loop: str = "lucir",
        phi_decay: float | None = None,
        **options: Any,
    ) -> None:
        AANetConfig(official=loop, phi_decay=phi_decay)  # checks the values
        for level in levels(model):
            if len(level.blocks) != 2:
                raise ConfigurationError(
                    f"{level.name} has the branches {level.blocks}: the official update needs two. "
                    f"Convert the model with two blocks."
                )
        super().__init__(model, lr=lr, momentum=momentum, normalize=False, **options)
        self.weight_decay = weight_decay
        self.accumulates = loop == "lucir"
        self.phi_decay = phi_decay
        self._decay_hook: RemovableHandle | None = None

    def _phase_changed(self) -> None:
        super()._phase_changed()
        for level in levels(self.model):
            if level.alpha is not None:
                level.alpha.requires_grad_(self.in_phase and self.accumulates)
        if self._decay_hook is not None:
            self._decay_hook.remove()
            self._decay_hook = None
        if self.in_phase and self.phi_decay is not None:
            self._decay_hook = register_optimizer_step_pre_hook(self._decay_phi)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the gradients that α has collected."""
        alphas = {name: level.alpha for name, level in named_levels(self.model).items()}
        gradients = {name: alpha.grad for name, alpha in alphas.items() if alpha is not None}
        return {**super().state_dict(), "gradients": gradients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        super().load_state_dict(state)
        for name, level in named_levels(self.model).items():
            gradient = state["gradients"].get(name)
            if level.alpha is not None and gradient is not None:
                level.alpha.grad = gradient.to(level.alpha)

    def _update(self, batches: Iterable[Any]) -> float:
        """Make a step after each batch, along the mean gradient of one batch of each rank.

        A rank without a batch left adds nothing.
        """
        losses = []
        named, rest = named_levels(self.model), iter(batches)
        with only_alpha_learns(self.model) as alphas, self._undone_on_error(alphas):
            self._share_collected(alphas)
            while mean := mean_over_ranks(self.model, self.loss_fn, islice(rest, 1), alphas):
                loss, gradients = mean
                losses.append(loss)
                for name, alpha, gradient in zip(named, alphas, gradients, strict=True):
                    self._step(alpha, name, gradient.to(alpha.dtype))
            if not losses:
                raise no_batch()
        return sum(losses) / len(losses)

    def _share_collected(self, alphas: list[Tensor]) -> None:
        """Give all ranks the mean of what α has collected in their backward passes."""
        if self.accumulates and several_ranks():
            zeros = torch.zeros_like(alphas[0])
            collected = torch.stack([zeros if a.grad is None else a.grad for a in alphas])
            collected = sum_over_ranks(collected) / dist.get_world_size()
            for alpha, gradient in zip(alphas, collected, strict=True):
                alpha.grad = gradient

    @contextmanager
    def _undone_on_error(self, alphas: list[Tensor]) -> Iterator[None]:
        """Undo the steps of an update if a later batch raises an error."""
        velocity = dict(self.step.velocity)
        before = [(alpha.detach().clone(), alpha.grad) for alpha in alphas]
        try:
            yield
        except BaseException:
            self.step.velocity = velocity
            for alpha, (weights, gradient) in zip(alphas, before, strict=True):
                alpha.detach().copy_(weights)
                alpha.grad = gradient
            raise

    @torch.no_grad()
    def _step(self, alpha: Any, name: str, gradient: Tensor) -> None:
        if self.accumulates:
            gradient = gradient if alpha.grad is None else alpha.grad + gradient
            alpha.grad = gradient
        slope = gradient[1] - gradient[0] + self.weight_decay * alpha[1]
        if name in self.step.velocity:
            slope = self.step.momentum * self.step.velocity[name] + slope
        self.step.velocity[name] = slope
        stable = (alpha[1] - self.current_lr * slope).clamp(0, 1)
        alpha.copy_(torch.stack([1 - stable, stable]))

    @torch.no_grad()
    def _decay_phi(self, optimizer: Optimizer, *_: Any) -> None:
        """Add the gradient of phi_decay·φ²/2, less that of the optimizer's own decay of δ."""
        assert self.phi_decay is not None
        deltas = {id(layer.delta) for layer in scaled_layers(self.model)}
        for group in optimizer.param_groups:
            rest = self.phi_decay - group.get("weight_decay", 0.0)
            for delta in group["params"]:
                if id(delta) in deltas and delta.grad is not None:
                    delta.grad += self.phi_decay + rest * delta
