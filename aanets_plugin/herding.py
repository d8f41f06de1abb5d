"""Herding: the choice of exemplars by their features.

Indices are returned as int64 tensors on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from aanets_plugin.checks import positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import MapStyle, check_counts, check_length, targets_of


def herd(features: torch.Tensor, k: int) -> torch.Tensor:
    """Choose `k` exemplars of one class by herding (iCaRL, Rebuffi et al. 2017, Algorithm 4).

    Each next exemplar is the one that brings the mean of the chosen features closest to the class
    mean. So the first m of k exemplars are what `herd(features, m)` returns. The arithmetic is
    float64 on the CPU.

    Args:
        features: `[samples, dimensions]`, floating point. Rows are L2-normalized here.
        k: Number of exemplars.

    Returns:
        Row indices, best first.

    Examples:
        >>> herd(torch.tensor([[0.0, 1.0], [3.0, 3.0], [2.0, 0.0]]), 2)
        tensor([1, 0])
    """
    check_features(features)
    k = positive(k, "k")
    if k > len(features):
        raise ConfigurationError(
            f"k={k}: must be ≤ {len(features)}, the number of samples. Lower k, or pass more "
            f"features."
        )
    return _herd(features, k)


def herd_classes(
    features: torch.Tensor, targets: MapStyle | Dataset[Any], k: int, *, at_most: bool = False
) -> dict[int, torch.Tensor]:
    """Apply `herd` to every class; returns a dict from class label to row indices, best first.

    A class with fewer than `k` samples is an error. With `at_most=True` all its samples are chosen.

    Examples:
        >>> features = torch.eye(4)
        >>> {label: len(rows) for label, rows in herd_classes(features, [3, 7, 3, 7], 1).items()}
        {3: 1, 7: 1}
    """
    check_features(features)
    k = positive(k, "k")
    labels = targets_of(targets)
    check_length(labels, features, "targets")
    classes, counts = torch.unique(labels, return_counts=True)
    if not at_most:
        check_counts(classes, counts, k, "k")
    rows_by_class = torch.split(labels.sort(stable=True).indices, counts.tolist())
    return {
        label: rows[_herd(features[rows.to(features.device)], min(k, len(rows)))]
        for label, rows in zip(classes.tolist(), rows_by_class, strict=True)
    }


def _herd(features: torch.Tensor, k: int) -> torch.Tensor:
    unit = features.detach().to("cpu", torch.float64)
    norms = unit.norm(dim=1, keepdim=True)
    unit = unit / norms.masked_fill(norms == 0, 1.0)
    mean = unit.mean(dim=0)
    # Step j minimizes ||mean - (total + f) / j||. Multiplied by j, squared, and without the terms
    # that do not depend on f, this is ||f||^2 - 2 f.(j mean - total): one matrix-vector product.
    # The squared norm is one, except for rows of zeros.
    squared = unit.square().sum(dim=1)
    total = torch.zeros_like(mean)
    chosen = torch.empty(k, dtype=torch.int64)
    for step in range(k):
        best = (squared - 2 * (unit @ ((step + 1) * mean - total))).argmin()
        chosen[step] = best
        total += unit[best]
        squared[best] = torch.inf
    return chosen


def check_features(features: torch.Tensor) -> None:
    """Refuse features that are not finite floating point [samples, dimensions]."""
    if not isinstance(features, torch.Tensor):
        raise ConfigurationError(
            f"features is a {type(features).__name__}: must be a tensor [samples, dimensions]. "
            "Convert it with torch.as_tensor."
        )
    if features.ndim != 2 or not features.is_floating_point():
        raise ConfigurationError(
            f"features has shape {tuple(features.shape)} and dtype {features.dtype}: must be "
            "floating point [samples, dimensions]. Use .flatten(1) or .float()."
        )
    finite = features.detach().isfinite().all(dim=1)
    if not finite.all():
        bad = (~finite).nonzero().flatten().tolist()
        raise ConfigurationError(
            f"features has NaN or infinity in {len(bad)} of {len(features)} rows, the first is row "
            f"{bad[0]}: must be finite. Check for a diverged network or an overflow in half "
            "precision."
        )
