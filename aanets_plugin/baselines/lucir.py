"""LUCIR (Hou et al. 2019): its losses and the method. Its head is in `heads.py`."""

import dataclasses
import math
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.heads import CosineMethod
from aanets_plugin.baselines.method import Output
from aanets_plugin.baselines.precision import at_least_float32
from aanets_plugin.checks import check_shapes, positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.field_checks import Count, PositiveOrZero


@dataclasses.dataclass(frozen=True)
class LUCIR(CosineMethod):
    """LUCIR: imprinted weights for new classes, frozen weights for old ones, three losses."""

    name: ClassVar[str] = "lucir"
    title: ClassVar[str] = "LUCIR"
    imprints = True

    base: PositiveOrZero = 5.0
    k: Count = 2
    margin: PositiveOrZero = 0.5
    ranking_weight: PositiveOrZero = 1.0

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        """Return `lucir_loss` of a batch."""
        return lucir_loss(
            out.logits,
            targets,
            scores=out.scores,
            features=out.features,
            teacher_features=None if teacher is None else teacher.features,
            old=0 if teacher is None else teacher.logits.shape[1],
            base=self.base,
            k=self.k,
            margin=self.margin,
            ranking_weight=self.ranking_weight,
        )


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
    """Cross-entropy + λ · less-forget + `ranking_weight` · margin ranking.

    λ is `less_forget_weight(old, new, base)`.

    Args:
        logits: [batch, classes], the first `old` columns are the old classes.
        scores: The cosines: `head.scores(features)`, or `logits / head.sigma`.
        features: The inputs of the head, [batch, dimensions].
        teacher_features: The same of the teacher. None: the loss is the cross-entropy alone.
        k, margin: See `margin_ranking_loss`.

    Examples:
        >>> import torch
        >>> from aanets_plugin.baselines import SplitCosineLinear
        >>> head, features = SplitCosineLinear(16, old=3, new=2), torch.randn(4, 16)
        >>> scores = head.scores(features)
        >>> loss = lucir_loss(
        ...     head.sigma * scores, torch.tensor([0, 4, 2, 3]), scores=scores, features=features,
        ...     teacher_features=torch.randn(4, 16), old=3,
        ... )
    """
    loss = F.cross_entropy(logits, targets)
    if teacher_features is None:
        return loss
    check_shapes("batch classes, batch classes", logits=logits, scores=scores)
    weight = less_forget_weight(old, logits.shape[1] - old, base)
    return (
        loss
        + weight * less_forget_loss(features, teacher_features)
        + ranking_weight * margin_ranking_loss(scores, targets, old, k=k, margin=margin)
    )


def less_forget_weight(old: int, new: int, base: float = 5.0) -> float:
    """λ = base · √(old / new). It grows with the number of old classes."""
    if old < 1 or new < 1:
        raise ConfigurationError(
            f"old={old!r}, new={new!r}: both must be ≥ 1. In the first phase there are no old "
            f"classes: pass teacher_features=None."
        )
    return base * math.sqrt(old / new)


def less_forget_loss(features: Tensor, teacher_features: Tensor) -> Tensor:
    """1 - cosine of the student's and the teacher's features, batch mean; the teacher is fixed."""
    shapes = "batch dimensions, batch dimensions"
    check_shapes(shapes, features=features, teacher_features=teacher_features)
    own, teacher = at_least_float32(features), at_least_float32(teacher_features.detach())
    return 1 - F.cosine_similarity(own, teacher, dim=1).mean()


def margin_ranking_loss(
    scores: Tensor, targets: Tensor, old: int, *, k: int = 2, margin: float = 0.5
) -> Tensor:
    """Separate samples of old classes from the new classes that score highest for them.

        mean of max(0, margin - score of the true class + score of the new class)

    The mean is over the samples of old classes (the first `old` columns of `scores`), and for each
    over the `k` new classes with the highest scores, or all if there are fewer. It is 0 for a batch
    without old classes. The authors' code averages over `k`, as here; the paper's equation sums.
    """
    check_shapes("batch classes, batch", scores=scores, targets=targets)
    classes = scores.shape[1]
    if not 1 <= old < classes:
        raise ConfigurationError(
            f"old={old!r} of {classes} classes: must be ≥ 1 and < {classes}. Pass the number of "
            f"classes of all earlier phases."
        )
    k = min(positive(k, "k"), classes - old)
    own = scores.gather(1, targets.unsqueeze(1))
    rivals = scores[:, old:].topk(k, dim=1).values
    # A mask keeps shapes independent of the data, so nothing waits for the device.
    is_old = targets.unsqueeze(1) < old
    hinge = F.relu(margin - own + rivals).where(is_old, scores.new_zeros(()))
    return hinge.sum() / (k * is_old.sum()).clamp_min(1)
