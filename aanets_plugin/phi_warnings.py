"""Warnings about φ that shows a mistake with optimizers."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from aanets_plugin.scaling import scaled_layers

MAX_DISTANCE = 100.0
"""A φ that is farther away from 1 than this is not the result of a working training."""


def warn_if_phi_never_moved(model: nn.Module, phase: int) -> None:
    """Warn if φ has gradients but is 1 everywhere. Without gradients there was no training."""
    deltas = [layer.delta for layer in scaled_layers(model) if layer.delta.requires_grad]
    trained = any(delta.grad is not None for delta in deltas)
    if trained and not any(bool(delta.any()) for delta in deltas):
        warnings.warn(
            f"φ did not move in the first epoch of phase {phase}, so the optimizer does not have "
            f"it, and the stable branch does not learn. Build the optimizer after begin_phase().",
            stacklevel=3,
        )


def warn_if_phi_is_absurd(model: nn.Module, phase: int) -> bool:
    """Warn if φ is far away from 1 or not finite; returns whether it is."""
    deltas = [layer.delta.detach() for layer in scaled_layers(model)]
    if not deltas:
        return False
    distance = float(torch.stack([delta.abs().max().double().cpu() for delta in deltas]).max())
    if distance <= MAX_DISTANCE:
        return False
    warnings.warn(
        f"φ is up to {distance:.3g} away from 1 in phase {phase}; it usually stays near 1. An "
        f"optimizer from before the phase does not clear the gradients of φ, so they add up. Build "
        f"optimizers after begin_phase(), and again after end_phase() if they are used between "
        f"phases.",
        stacklevel=3,
    )
    return True
