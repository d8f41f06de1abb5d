"""From the gradient of α to the next α. The weights of a level stay in [0, 1] and sum to one."""

from typing import Any

import torch
from torch import Tensor


def project(weights: Tensor) -> Tensor:
    """Return the nearest weights in [0, 1] that sum to one (projection onto the simplex)."""
    weights = weights - weights.max()  # does not change the projection, and avoids cancellation
    ordered = weights.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(weights) + 1, dtype=weights.dtype)
    return (weights - excess[(ordered > excess).nonzero().max()]).clamp(0, 1)


class PlainStep:
    """Gradient descent with momentum (Eq. 8), projected onto the simplex."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.velocity: dict[str, Tensor] = {}

    def begin_phase(self) -> None:
        """Reset the momentum."""
        self.velocity.clear()

    def __call__(self, level: str, alpha: Tensor, gradient: Tensor, lr: float) -> Tensor:
        """Return the next α of `level`."""
        # The mean is subtracted: that part of the gradient would only change the sum.
        step = lr * self.direction(level, gradient - gradient.mean())
        if self.momentum:
            step = step + self.momentum * self.velocity.get(level, torch.zeros_like(step))
            self.velocity[level] = step
        return project(alpha - step)

    def direction(self, level: str, gradient: Tensor) -> Tensor:
        """Return the direction of the step."""
        return gradient

    def state_dict(self) -> dict[str, Any]:
        """Return the momentum of every level."""
        return {"velocity": dict(self.velocity)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.velocity = dict(state["velocity"])


class NormalizedStep(PlainStep):
    """AdaGrad per level: the gradient is divided by the root of the sum of all squared gradients.

    The first step has length `lr`. Scaling the loss changes nothing. The sums are kept across
    phases: resetting them would make the first step of every phase a jump, and over many phases α
    would drift to 0 or 1.
    """

    def __init__(self, momentum: float) -> None:
        super().__init__(momentum)
        self.squares: dict[str, Tensor] = {}

    def direction(self, level: str, gradient: Tensor) -> Tensor:
        """Add the gradient to the sum of squares, and return it divided by the root."""
        squares = gradient.square().sum()
        if level in self.squares:
            squares = squares + self.squares[level]
        self.squares[level] = squares
        return gradient / squares.sqrt() if squares > 0 else gradient

    def state_dict(self) -> dict[str, Any]:
        """Return the momentum and the sum of squares of every level."""
        return {**super().state_dict(), "squares": dict(self.squares)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        super().load_state_dict(state)
        self.squares = dict(state["squares"])
