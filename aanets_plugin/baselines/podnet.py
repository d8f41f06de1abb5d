"""PODNet (Douillard et al., ECCV 2020): its losses and the method. `proxies.py` has its classifier.

No gradient flows into any argument called `teacher_…`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.lucir import less_forget_loss
from aanets_plugin.baselines.method import FineTuning, Method, Output
from aanets_plugin.baselines.precision import at_least_float32
from aanets_plugin.baselines.proxies import LocalSimilarityClassifier
from aanets_plugin.checks import check_shapes
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.field_checks import Count, CountOrZero, Positive, PositiveOrZero


@dataclasses.dataclass(frozen=True)
class PODNet(Method):
    """PODNet: distillation of pooled feature maps, and ten proxies per class."""

    name: ClassVar[str] = "podnet"
    title: ClassVar[str] = "PODNet"
    head_type: ClassVar[str] = "proxies"
    imprints = True
    needs_maps: ClassVar[bool] = True
    schedule: ClassVar[str] = "cosine"

    spatial_weight: PositiveOrZero = 3.0
    flat_weight: PositiveOrZero = 1.0
    proxies: Count = 10
    finetune_epochs: CountOrZero = 20
    finetune_lr: Positive = 0.05

    @property
    def fine_tuning(self) -> FineTuning | None:
        """Epochs and learning rate for the head; None with `finetune_epochs=0`."""
        return FineTuning(self.finetune_epochs, self.finetune_lr) if self.finetune_epochs else None

    def head(self, in_features: int, classes: int) -> nn.Module:
        """Return a `LocalSimilarityClassifier`."""
        return LocalSimilarityClassifier(in_features, classes, self.proxies)

    def grow(
        self,
        head: nn.Module,
        new: int,
        features: Tensor | None = None,
        targets: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
        """Freeze the proxies of the old classes and add those of the new ones, in place."""
        assert isinstance(head, LocalSimilarityClassifier)
        for weight in head.weights:
            weight.requires_grad_(False)
        if features is None or targets is None:
            head.add_classes(new)
        else:
            classes = range(head.out_features, head.out_features + new)
            head.imprint(features, targets, list(classes), generator)
        return head

    def score(self, head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return similarities, and logits: η times them."""
        assert isinstance(head, LocalSimilarityClassifier)
        scores = head.similarities(features)
        return scores, head.eta * scores

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        """Return `podnet_loss` of a batch, or `proxy_nca_loss` without a teacher."""
        assert isinstance(head, LocalSimilarityClassifier)
        if teacher is None:
            return proxy_nca_loss(out.scores, targets, head.eta)
        seen = out.logits.shape[1]
        return podnet_loss(
            out.scores,
            targets,
            scale=head.eta,
            seen=seen,
            new=seen - teacher.logits.shape[1],
            features=out.features,
            teacher_features=teacher.features,
            maps=out.maps,
            teacher_maps=teacher.maps,
            spatial_weight=self.spatial_weight,
            flat_weight=self.flat_weight,
        )


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
    """NCA + √(seen / new) · (`spatial_weight` · POD-spatial + `flat_weight` · POD-flat).

    NCA is `proxy_nca_loss`; the other terms are `pod_scale`, `pod_spatial` and `pod_flat`. The
    default weights are PODNet's for CIFAR-100. In the first phase there is no teacher: leave out
    features and maps, and the loss is NCA alone.

    Examples:
        >>> import copy
        >>> from aanets_plugin.baselines import CifarResNet, stage_maps
        >>> model = CifarResNet(1, 60)
        >>> model.fc = LocalSimilarityClassifier(64, 60)
        >>> teacher, x, y = copy.deepcopy(model), torch.randn(2, 3, 8, 8), torch.tensor([3, 59])
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
    if all(given is None for given in (features, teacher_features, maps, teacher_maps)):
        return loss
    if features is None or teacher_features is None or maps is None or teacher_maps is None:
        raise ConfigurationError(
            "Distillation needs features, teacher_features, maps and teacher_maps: must be all or "
            "none. In a phase without a teacher leave them out."
        )
    spatial = spatial_weight * pod_spatial(maps, teacher_maps)
    return loss + factor * (spatial + flat_weight * pod_flat(features, teacher_features))


def pod_spatial(maps: Sequence[Tensor], teacher_maps: Sequence[Tensor]) -> Tensor:
    """Distance of the feature maps of each stage from the teacher's (POD-spatial).

    Each map [batch, channels, height, width] is squared, then summed over its width and over its
    height. Both sums form one L2-normalized vector per sample. The loss is the Euclidean distance
    of these vectors, between 0 and √2, averaged over the batch and over the stages.
    """
    if not maps or len(maps) != len(teacher_maps):
        raise ConfigurationError(
            f"{len(maps)} maps and {len(teacher_maps)} of the teacher: must be one of each per "
            f"stage. Collect both with stage_maps."
        )
    distances = []
    for stage, (own, teacher) in enumerate(zip(maps, teacher_maps, strict=True)):
        both = {f"maps[{stage}]": own, f"teacher_maps[{stage}]": teacher}
        check_shapes("batch channels height width, batch channels height width", **both)
        difference = _pooled(own) - _pooled(teacher.detach())
        distances.append(torch.linalg.vector_norm(difference, dim=1).mean())
    return torch.stack(distances).mean()


def pod_flat(features: Tensor, teacher_features: Tensor) -> Tensor:
    """1 - cosine of the student's and the teacher's features (POD-flat), as `less_forget_loss`."""
    return less_forget_loss(features, teacher_features)


def pod_scale(seen: int, new: int) -> float:
    """√(seen / new), the factor on both distillation losses. `seen` includes the new classes."""
    if not 1 <= new <= seen:
        raise ConfigurationError(
            f"seen={seen} and new={new} classes: must be 1 ≤ new ≤ seen. The classes seen include "
            f"the new ones."
        )
    return math.sqrt(seen / new)


def proxy_nca_loss(similarities: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """PODNet's classification loss as in the authors' code, averaged over the batch.

        log(1 + Σ_{i≠y} exp(s_i)) - s_y,  s = η ŷ - max η ŷ

    `similarities` are ŷ, [batch, classes], and `scale` is η, usually the learned `eta` of the
    classifier. The loss equals the cross-entropy where the true class scores highest, and is
    slightly larger elsewhere. The authors subtract the margin from every class, so it cancels.
    Unlike `nca_loss`, this loss gives a learned η no reason to become negative.
    """
    _check_targets(similarities, targets)
    rows = targets.unsqueeze(1)
    scaled = scale * similarities
    scaled = scaled - scaled.amax(dim=1, keepdim=True)
    # The true class contributes exp(0) = 1 to the sum.
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
    """PODNet's classification loss as in its paper, averaged over the batch.

        [-log exp(η(ŷ_y - δ)) / Σ_{i≠y} exp(η ŷ_i)]₊

    `scale` is η and `margin` is δ. With `hinge=False`, [·]₊ is left out, and samples that exceed
    the margin continue to learn. Keep η fixed: with a learned η, training can end at η < 0, where
    the smallest similarity wins.
    """
    _check_targets(similarities, targets)
    rows = targets.unsqueeze(1)
    positive = scale * (similarities.gather(1, rows).squeeze(1) - margin)
    own_class = torch.zeros_like(similarities, dtype=torch.bool).scatter(1, rows, True)
    others = (scale * similarities).masked_fill(own_class, -math.inf).logsumexp(1)
    losses = others - positive
    return (losses.clamp_min(0) if hinge else losses).mean()


def _pooled(maps: Tensor) -> Tensor:
    """L2-normalized sums of squares over width and height, [batch, channels · (height + width)]."""
    squares = at_least_float32(maps).square()
    sums = torch.cat([squares.sum(dim=3).flatten(1), squares.sum(dim=2).flatten(1)], dim=1)
    return F.normalize(sums, dim=1)


def _check_targets(similarities: Tensor, targets: Tensor) -> None:
    check_shapes("batch classes, batch", similarities=similarities, targets=targets)
    classes = similarities.shape[1]
    if classes < 2:
        raise ConfigurationError("similarities has one column: must have at least two classes.")
    # Reading the values on a GPU would wait for it, and in compiled code it would split the graph.
    # There, gather reports bad targets itself.
    if torch.compiler.is_compiling() or targets.device.type != "cpu":
        return
    if not ((targets >= 0) & (targets < classes)).all():
        raise ConfigurationError(
            f"targets range from {int(targets.min())} to {int(targets.max())}: must be 0 to "
            f"{classes - 1}, the columns of similarities."
        )
