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
    phi = [layer.phi for layer in scaled_layers(model) if layer.phi.requires_grad]
    trained = any(p.grad is not None for p in phi)
    if trained and all(bool((p == 1).all()) for p in phi):
        warnings.warn(
            f"φ did not move in phase {phase}, so the optimizer does not have it. Build the "
            f"optimizer after begin_phase().",
            stacklevel=3,
        )


def warn_if_phi_is_absurd(model: nn.Module, phase: int) -> bool:
    """Warn if φ is far away from 1 or not finite; returns whether it is."""
    phi = [layer.phi.detach() for layer in scaled_layers(model)]
    if not phi:
        return False
    distance = float(torch.stack([(p - 1).abs().max().double().cpu() for p in phi]).max())
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
