"""Losses of α for Avalanche's batches (x, y, task label) and models."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from avalanche.models import TrainEvalModel, avalanche_forward
from avalanche.training.supervised import SCR
from torch import Tensor, nn

from aanets_plugin.alpha_gradient import LossFunction
from aanets_plugin.default_loss import logits_of


def default_loss(strategy: Any) -> LossFunction:
    """Return the cross-entropy of the class logits; for SCR, which has no logits, its own loss."""
    if isinstance(strategy, SCR):
        return functools.partial(
            contrastive, criterion=strategy.train_loss, augment=strategy.augmentations
        )
    return cross_entropy


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the class logits for a batch (x, y, task label)."""
    x, y, tasks = to_device(model, batch)
    if isinstance(model, TrainEvalModel):
        # Its forward in eval mode predicts by nearest mean, which has no gradient.
        return F.cross_entropy(logits_of(model.train_classifier(model.feature_extractor(x))), y)
    return F.cross_entropy(logits_of(avalanche_forward(model, x, tasks)), y)


def contrastive(
    model: Any, batch: Any, *, criterion: nn.Module, augment: Callable[[Tensor], Tensor]
) -> Tensor:
    """SCR's contrastive loss of two views of each sample, after the projection head."""
    x, y, _ = to_device(model, batch)
    features = F.normalize(model.feature_extractor(torch.cat([x, augment(x)])), p=2, dim=1)
    views = torch.stack(model.train_classifier(features).chunk(2), dim=1)
    return criterion(views, y)  # type: ignore[no-any-return]


def to_device(model: nn.Module, batch: Any) -> list[Tensor]:
    """The tensors of a batch on the device of the model."""
    device = next(model.parameters()).device
    return [item.to(device, non_blocking=True) for item in batch]
