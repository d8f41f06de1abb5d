"""iCaRL's classifier: the nearest class mean (Rebuffi et al. 2017, Algorithm 1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import MapStyle, check_features, check_length, targets_of


def class_means(
    features: Tensor, targets: MapStyle, flipped: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The classes in ``targets``, ascending, and the unit mean of each: ``(classes, means)``.

    Every row of ``features`` is L2-normalised, the rows of a class are averaged, the average is
    normalised again. ``flipped`` holds the features of the same images mirrored left to right (not
    of other images, nor in another order): they are normalised and averaged in with equal
    weight. No gradient comes out. Sums are float64 on the CPU, whatever the features are; half
    precision features give float32 means.

    >>> features = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> classes, means = class_means(features, [7, 4, 4])
    >>> classes, means
    (tensor([4, 7]), tensor([[0., 1.],
            [1., 0.]]))
    """
    check_features(features)
    labels = targets_of(targets)
    check_length(labels, features, "targets")
    if len(labels) == 0:
        raise ConfigurationError(
            f"features has the shape {tuple(features.shape)}: expected at least one sample; pass "
            "the features of the exemplars"
        )
    unit = _unit(features)
    if flipped is not None:
        check_features(flipped)
        if flipped.shape != features.shape:
            raise ConfigurationError(
                f"flipped has the shape {tuple(flipped.shape)}, features has "
                f"{tuple(features.shape)}; expected the same: one mirrored image for each image"
            )
        unit = (unit + _unit(flipped)) / 2
    classes, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = unit.new_zeros(len(classes), unit.shape[1]).index_add_(0, inverse, unit)
    means = F.normalize(sums / counts.unsqueeze(1), dim=1)
    dtype = torch.promote_types(features.dtype, torch.float32)
    return classes.to(features.device), means.to(dtype).to(features.device)


def nearest_mean(features: Tensor, classes: Tensor, means: Tensor) -> Tensor:
    """The class of the mean that is nearest to each L2-normalised row of ``features``: [samples].

    ``classes`` and ``means`` are what :func:`class_means` gives.

    >>> classes, means = torch.tensor([4, 7]), torch.eye(2)
    >>> nearest_mean(torch.tensor([[9.0, 1.0], [0.1, 0.2]]), classes, means)
    tensor([4, 7])
    """
    if features.ndim != 2 or means.ndim != 2 or features.shape[1] != means.shape[1]:
        raise ConfigurationError(
            f"features has the shape {tuple(features.shape)}, means has {tuple(means.shape)}; "
            "expected [samples, dimensions] and [classes, dimensions] with the same dimensions; "
            "compute both with the same network"
        )
    if len(means) == 0 or classes.shape != means.shape[:1]:
        raise ConfigurationError(
            f"classes has the shape {tuple(classes.shape)} for {len(means)} means; expected one "
            "label for each mean, and at least one; pass what class_means gave"
        )
    features = features.detach()
    unit = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)
    nearest = torch.cdist(unit, means.detach().to(unit)).argmin(dim=1)
    return classes.to(nearest.device)[nearest]


def _unit(features: Tensor) -> Tensor:
    return F.normalize(features.detach().to("cpu", torch.float64), dim=1)
