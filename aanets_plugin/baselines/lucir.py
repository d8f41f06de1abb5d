"""LUCIR's three losses (Hou et al. 2019): cross-entropy, less-forget, margin ranking.

Its head and its imprinting are in ``heads.py``.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from aanets_plugin.baselines.precision import at_least_float32
from aanets_plugin.errors import ConfigurationError


def lucir_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    scores: Tensor,
    features: Tensor,
    teacher_features: Tensor | None,
    old: int,
    base: float = 5.0,
    k: int = 2,
    margin: float = 0.5,
    ranking_weight: float = 1.0,
) -> Tensor:
    """Cross-entropy + λ · less-forget + ``ranking_weight`` · margin ranking.

    ``old`` is the number of old classes, the first columns of ``logits``; the other columns are
    new, and λ is :func:`less_forget_weight` of the two numbers. ``scores`` are the cosines that
    ``logits`` are a multiple of: from one product, ``scores = head.scores(features)`` and
    ``logits = head.sigma * scores``; where a network gives its logits only,
    ``logits / head.sigma``. ``teacher_features`` is ``None`` where there is no teacher yet, and the
    loss is the cross-entropy.

    >>> import torch
    >>> from aanets_plugin.baselines import SplitCosineLinear
    >>> head, features = SplitCosineLinear(16, old=3, new=2), torch.randn(4, 16)
    >>> scores = head.scores(features)
    >>> loss = lucir_loss(
    ...     head.sigma * scores,
    ...     torch.tensor([0, 4, 2, 3]),
    ...     scores=scores,
    ...     features=features,
    ...     teacher_features=torch.randn(4, 16),
    ...     old=3,
    ... )
    >>> loss.backward()
    """
    loss = F.cross_entropy(logits, targets)
    if teacher_features is None:
        return loss
    if logits.shape != scores.shape:
        raise ConfigurationError(
            f"logits has the shape {tuple(logits.shape)}, scores has {tuple(scores.shape)}; "
            "expected the same: logits are sigma times scores"
        )
    weight = less_forget_weight(old, logits.shape[1] - old, base)
    return (
        loss
        + weight * less_forget_loss(features, teacher_features)
        + ranking_weight * margin_ranking_loss(scores, targets, old, k=k, margin=margin)
    )


def less_forget_weight(old: int, new: int, base: float = 5.0) -> float:
    """λ = ``base`` · sqrt(old / new): the more there is to keep, the more weight on keeping it.

    >>> less_forget_weight(old=40, new=10)
    10.0
    """
    if old < 1 or new < 1:
        raise ConfigurationError(
            f"old={old!r}, new={new!r}; expected at least one old and one new class; before the "
            "first classes are old there is nothing to keep: pass teacher_features=None"
        )
    return base * math.sqrt(old / new)


def less_forget_loss(features: Tensor, teacher_features: Tensor) -> Tensor:
    """Mean over samples of 1 - cos(feature, teacher's feature); no gradient reaches the teacher."""
    if features.ndim != 2 or features.shape != teacher_features.shape:
        raise ConfigurationError(
            f"features has the shape {tuple(features.shape)}, teacher_features has "
            f"{tuple(teacher_features.shape)}; expected the same [batch, dimensions]; pass what "
            "the classifier of each network sees, for the same batch"
        )
    own, teacher = at_least_float32(features), at_least_float32(teacher_features.detach())
    return 1 - F.cosine_similarity(own, teacher, dim=1).mean()


def margin_ranking_loss(
    scores: Tensor, targets: Tensor, old: int, *, k: int = 2, margin: float = 0.5
) -> Tensor:
    """Keep old classes' samples away from the new classes they are nearest to.

    Over the samples whose class is among the first ``old``, and over the ``k`` new classes that
    score highest for each (all of them, where there are fewer):

        mean of max(0, margin - score of its own class + score of the new class)

    ``scores`` are cosines, [batch, classes]. The mean over ``k`` is the authors' code; the
    paper's equation adds the ``k`` terms. A batch without an old class's sample gives zero.
    """
    if k < 1:
        raise ConfigurationError(f"k={k!r}; expected at least 1; LUCIR's is 2")
    if scores.ndim != 2 or targets.shape != scores.shape[:1]:
        raise ConfigurationError(
            f"scores has the shape {tuple(scores.shape)}, targets has {tuple(targets.shape)}; "
            "expected [batch, classes] and [batch]"
        )
    classes = scores.shape[1]
    if not 1 <= old < classes:
        raise ConfigurationError(
            f"old={old!r} of {classes} classes; expected at least one old and one new class; pass "
            "the number of classes of all phases before this one"
        )
    k = min(k, classes - old)
    own = scores.gather(1, targets.unsqueeze(1))
    rivals = scores[:, old:].topk(k, dim=1).values
    # A mask and not a selection: no shape depends on the data, nothing waits for the device.
    is_old = targets.unsqueeze(1) < old
    hinge = F.relu(margin - own + rivals).where(is_old, scores.new_zeros(()))
    return hinge.sum() / (k * is_old.sum()).clamp_min(1)
