"""Prediction by the nearest class mean (iCaRL, Rebuffi et al. 2017, Algorithm 1)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.precision import at_least_float32
from aanets_plugin.checks import check_shapes
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import MapStyle, check_length, targets_of
from aanets_plugin.herding import check_features


def class_means(
    features: Tensor, targets: MapStyle, flipped: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the classes in ascending order and the unit mean of each: `(classes, means)`.

    The features [samples, dimensions] are L2-normalized, averaged by class, and the averages are
    normalized again. `flipped` are the features of the same images mirrored left to right; they
    count with equal weight. The sums are float64 on the CPU. Half precision features give float32
    means. No gradient flows through.

    Examples:
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
            f"features has the shape {tuple(features.shape)}: must have at least one sample. Pass "
            f"the features of the exemplars."
        )
    unit = _unit(features)
    if flipped is not None:
        check_features(flipped)
        check_shapes("samples dimensions, samples dimensions", flipped=flipped, features=features)
        unit = (unit + _unit(flipped)) / 2
    classes, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = unit.new_zeros(len(classes), unit.shape[1]).index_add_(0, inverse, unit)
    means = F.normalize(sums / counts.unsqueeze(1), dim=1)
    dtype = torch.promote_types(features.dtype, torch.float32)
    return classes.to(features.device), means.to(dtype).to(features.device)


def nearest_mean(features: Tensor, classes: Tensor, means: Tensor) -> Tensor:
    """Return the class of the mean nearest to each L2-normalized feature, [samples].

    `classes` and `means` are the results of `class_means`.

    Examples:
        >>> classes, means = torch.tensor([4, 7]), torch.eye(2)
        >>> nearest_mean(torch.tensor([[9.0, 1.0], [0.1, 0.2]]), classes, means)
        tensor([4, 7])
    """
    shapes = "samples dimensions, classes, classes dimensions"
    check_shapes(shapes, features=features, classes=classes, means=means)
    if not len(means):
        raise ConfigurationError("means is empty: must have at least one. Use class_means.")
    nearest = mean_distances(features, means).argmin(dim=1)
    return classes.to(nearest.device)[nearest]


def mean_distances(features: Tensor, means: Tensor) -> Tensor:
    """Return the distance of each L2-normalized feature from each mean, [samples, classes]."""
    unit = F.normalize(at_least_float32(features.detach()), dim=1)
    return torch.cdist(unit, means.detach().to(unit))


def flips_horizontally(transforms: Any) -> bool:
    """Whether `transforms` contain a RandomHorizontalFlip.

    Nearest means use mirrored exemplars if the network was trained on mirrored images. Containers
    are searched: lists, torchvision's and Avalanche's Compose and the like, `nn.Sequential`.
    """
    if type(transforms).__name__ == "RandomHorizontalFlip":
        return bool(getattr(transforms, "p", 1.0) > 0)
    inner = getattr(transforms, "transforms", transforms)
    if not isinstance(inner, (list, tuple, nn.Sequential, nn.ModuleList)):
        return False
    return any(flips_horizontally(transform) for transform in inner)


def _unit(features: Tensor) -> Tensor:
    return F.normalize(features.detach().to("cpu", torch.float64), dim=1)
