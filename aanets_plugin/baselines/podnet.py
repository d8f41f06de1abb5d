"""PODNet's losses (Douillard et al., ECCV 2020): pooled outputs distillation and NCA.

No gradient goes into anything called `teacher`. The classifier that goes with them is
`LocalSimilarityClassifier`, the maps come from `stage_maps`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from aanets_plugin.baselines.lucir import less_forget_loss
from aanets_plugin.baselines.precision import at_least_float32
from aanets_plugin.errors import ConfigurationError


def pod_spatial(maps: Sequence[Tensor], teacher_maps: Sequence[Tensor]) -> Tensor:
    """How far the maps `[batch, channels, height, width]` of each stage are from the teacher's.

    A map is squared and pooled twice, over its width and over its height. Both results, in one
    vector of length one per sample, are compared by Euclidean distance: between 0 and √2, averaged
    over the batch and then over the stages.
    """
    if not maps or len(maps) != len(teacher_maps):
        raise ConfigurationError(
            f"{len(maps)} maps and {len(teacher_maps)} of the teacher: expected one of each per "
            f"stage; collect both with stage_maps"
        )
    distances = []
    for stage, (own, teacher) in enumerate(zip(maps, teacher_maps, strict=True)):
        if own.shape != teacher.shape or own.dim() != 4:
            raise ConfigurationError(
                f"maps[{stage}] has the shape {tuple(own.shape)} and the teacher's "
                f"{tuple(teacher.shape)}; expected [batch, channels, height, width], the same for "
                f"both"
            )
        difference = _pooled(own) - _pooled(teacher.detach())
        distances.append(torch.linalg.vector_norm(difference, dim=1).mean())
    return torch.stack(distances).mean()


def pod_flat(features: Tensor, teacher_features: Tensor) -> Tensor:
    """1 - cosine of the features `[batch, dimensions]` and the teacher's, mean over the batch.

    The same as LUCIR's less-forget constraint.
    """
    return less_forget_loss(features, teacher_features)


def pod_scale(seen: int, new: int) -> float:
    """√(seen / new), the factor on both distillation losses. `seen` counts the new classes too.

    >>> pod_scale(seen=60, new=15)
    2.0
    """
    if not 1 <= new <= seen:
        raise ConfigurationError(
            f"seen={seen} and new={new} classes; expected 1 <= new <= seen, since the classes of "
            f"this phase are among those seen so far"
        )
    return math.sqrt(seen / new)


def proxy_nca_loss(similarities: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """PODNet's classification loss as its authors' code has it, batch mean:

        log(1 + Σ_{i≠y} exp(s_i)) - s_y,  s = η ŷ - max η ŷ

    There the margin is taken off every class, and so cancels. Cross-entropy where the true class
    scores highest, a little more elsewhere. Unlike :func:`nca_loss` it does not reward a learned η
    for turning negative, so it is what :func:`podnet_loss` uses.
    """
    _check_targets(similarities, targets)
    rows = targets.unsqueeze(1)
    scaled = scale * similarities
    scaled = scaled - scaled.amax(dim=1, keepdim=True)
    # The true class stands in the sum as exp(0) = 1.
    others = scaled.scatter(1, rows, 0.0).logsumexp(1)
    return (others - scaled.gather(1, rows).squeeze(1)).mean()


def nca_loss(
    similarities: Tensor,
    targets: Tensor,
    scale: Tensor | float,
    margin: float = 0.6,
    *,
    hinge: bool = True,
) -> Tensor:
    """PODNet's classification loss as its paper has it, batch mean:

        [-log exp(η(ŷ_y - δ)) / Σ_{i≠y} exp(η ŷ_i)]₊

    With a learned η it can end at η < 0, where the smallest similarity wins: keep η fixed.

    `similarities` are the ŷ, `[batch, classes]`, without η; η is `scale`, usually a classifier's
    learned `eta`; δ is `margin`. `hinge=False` leaves out the [·]₊, so that samples which are right
    by more than the margin go on learning.
    """
    _check_targets(similarities, targets)
    rows = targets.unsqueeze(1)
    positive = scale * (similarities.gather(1, rows).squeeze(1) - margin)
    own_class = torch.zeros_like(similarities, dtype=torch.bool).scatter(1, rows, True)
    others = (scale * similarities).masked_fill(own_class, -math.inf).logsumexp(1)
    losses = others - positive
    return (losses.clamp_min(0) if hinge else losses).mean()


def podnet_loss(
    similarities: Tensor,
    targets: Tensor,
    *,
    scale: Tensor | float,
    seen: int,
    new: int,
    features: Tensor | None = None,
    teacher_features: Tensor | None = None,
    maps: Sequence[Tensor] | None = None,
    teacher_maps: Sequence[Tensor] | None = None,
    spatial_weight: float = 3.0,
    flat_weight: float = 1.0,
) -> Tensor:
    """NCA + √(seen / new) · (3 · POD-spatial + POD-flat): the loss of one batch.

    NCA is :func:`proxy_nca_loss`.

    In the first phase there is no teacher: leave out features and maps, and the NCA loss remains.
    The weights are those of CIFAR-100.

        >>> with stage_maps(model) as maps, stage_maps(teacher) as teacher_maps:
        ...     features = model.features(x)
        ...     with torch.no_grad():
        ...         teacher_features = teacher.features(x)
        >>> loss = podnet_loss(
        ...     model.fc.similarities(features), y, scale=model.fc.eta, seen=60, new=10,
        ...     features=features, teacher_features=teacher_features,
        ...     maps=maps, teacher_maps=teacher_maps,
        ... )
    """
    factor = pod_scale(seen, new)
    loss = proxy_nca_loss(similarities, targets, scale)
    given = {
        "features": features,
        "teacher_features": teacher_features,
        "maps": maps,
        "teacher_maps": teacher_maps,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return loss
    if features is None or teacher_features is None or maps is None or teacher_maps is None:
        raise ConfigurationError(
            f"{', '.join(missing)} left out: distillation needs {', '.join(given)}; give all of "
            f"them, or none in a phase without a teacher"
        )
    spatial = spatial_weight * pod_spatial(maps, teacher_maps)
    return loss + factor * (spatial + flat_weight * pod_flat(features, teacher_features))


def _pooled(maps: Tensor) -> Tensor:
    """Sums of squares over the width and over the height, `[batch, channels · (height + width)]`,
    each row of length one."""
    squares = at_least_float32(maps).square()
    sums = torch.cat([squares.sum(dim=3).flatten(1), squares.sum(dim=2).flatten(1)], dim=1)
    return F.normalize(sums, dim=1)


def _check_targets(similarities: Tensor, targets: Tensor) -> None:
    shape = tuple(similarities.shape)
    if len(shape) != 2 or shape[1] < 2 or targets.shape != shape[:1]:
        raise ConfigurationError(
            f"similarities has the shape {shape} and targets {tuple(targets.shape)}; expected "
            f"[batch, classes] with at least two classes, and [batch]"
        )
    # On another device this would wait for it; there, gather complains by itself.
    if targets.device.type == "cpu" and len(targets):
        low, high = int(targets.min()), int(targets.max())
        if not 0 <= low <= high < shape[1]:
            raise ConfigurationError(
                f"targets go from {low} to {high}; expected 0 to {shape[1] - 1}, the columns of "
                f"similarities"
            )
