"""From a gradient to the next α: steps on the simplex of weights that sum to one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def project(weights: Tensor) -> Tensor:
    """The nearest weights in [0, 1] that sum to one (Euclidean projection on the simplex)."""
    weights = weights - weights.max()  # moves all alike, so not the projection, and keeps digits
    ordered = weights.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(weights) + 1, dtype=weights.dtype)
    return (weights - excess[(ordered > excess).nonzero().max()]).clamp(0, 1)


class PlainStep:
    """Eq. 8 with momentum: along the gradient's part that keeps the sum, then projected."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.velocity: dict[str, Tensor] = {}

    def begin_phase(self) -> None:
        """Momentum is of the phase that gave it."""
        self.velocity.clear()

    def __call__(self, level: str, alpha: Tensor, gradient: Tensor, lr: float) -> Tensor:
        step = lr * self.direction(level, gradient - gradient.mean())
        if self.momentum:
            step = step + self.momentum * self.velocity.get(level, torch.zeros_like(step))
            self.velocity[level] = step
        return project(alpha - step)

    def direction(self, level: str, gradient: Tensor) -> Tensor:
        return gradient

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": dict(self.velocity)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.velocity = dict(state["velocity"])


class NormalizedStep(PlainStep):
    """AdaGrad by level: the gradient over the root of the sum of squares of all so far.

    The first step has the length `lr`, a gradient that keeps its size makes steps that fall like
    1/√t, one that shrinks makes them fall faster, and a multiple of the loss changes nothing. A
    new phase goes on with these sums: a first step of full length in each would be a jump between
    phases, and by the drift of many phases α would come to an edge.
    """

    def __init__(self, momentum: float) -> None:
        super().__init__(momentum)
        self.squares: dict[str, Tensor] = {}

    def direction(self, level: str, gradient: Tensor) -> Tensor:
        squares = gradient.square().sum()
        if level in self.squares:
            squares = squares + self.squares[level]
        self.squares[level] = squares
        return gradient / squares.sqrt() if squares > 0 else gradient

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "squares": dict(self.squares)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.squares = dict(state["squares"])
