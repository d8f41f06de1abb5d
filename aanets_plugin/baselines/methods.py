"""iCaRL, LUCIR, PODNet and Mnemonics, and joint training as their upper bound.

Losses, heads and exemplar rules are in the files of their names; here each method is put together
from them, with its own and the paper's hyperparameters as defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.heads import (
    CosineLinear,
    SplitCosineLinear,
    grow_cosine,
    imprinted_weights,
)
from aanets_plugin.baselines.icarl import icarl_loss
from aanets_plugin.baselines.lucir import lucir_loss
from aanets_plugin.baselines.method import FineTuning, Method, Output, Rule, old_classes
from aanets_plugin.baselines.mnemonics import refine_exemplars
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.baselines.podnet import podnet_loss
from aanets_plugin.baselines.proxies import LocalSimilarityClassifier


@dataclasses.dataclass(frozen=True)
class CosineMethod(Method):
    """A method with LUCIR's cosine head; new weights are random."""

    def head(self, in_features: int, classes: int) -> nn.Module:
        return CosineLinear(in_features, classes)

    def grow(
        self,
        head: nn.Module,
        new: int,
        features: Tensor | None = None,
        targets: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
        assert isinstance(head, (CosineLinear, SplitCosineLinear))
        return grow_cosine(head, new)

    def score(self, head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(head, (CosineLinear, SplitCosineLinear))
        scores = head.scores(features)
        return scores, head.sigma * scores


@dataclasses.dataclass(frozen=True)
class Joint(CosineMethod):
    """All data of all classes seen so far, in every phase: the upper bound."""

    name: ClassVar[str] = "joint"
    keeps_all_data: ClassVar[bool] = True

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        return F.cross_entropy(out.logits, targets)


@dataclasses.dataclass(frozen=True)
class ICaRL(CosineMethod):
    """iCaRL (Rebuffi et al. 2017) with a softmax and a cosine head, as the paper compares it."""

    name: ClassVar[str] = "icarl"
    predicts_by: ClassVar[Rule] = "nearest_mean"

    temperature: float = 2.0
    beta: float = 0.25

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        logits = None if teacher is None else teacher.logits
        return icarl_loss(out.logits, targets, logits, temperature=self.temperature, beta=self.beta)


@dataclasses.dataclass(frozen=True)
class LUCIR(CosineMethod):
    """LUCIR (Hou et al. 2019): imprinted new weights, fixed old ones, three losses."""

    name: ClassVar[str] = "lucir"
    imprints: ClassVar[bool] = True

    base: float = 5.0
    k: int = 2
    margin: float = 0.5
    ranking_weight: float = 1.0

    def grow(
        self,
        head: nn.Module,
        new: int,
        features: Tensor | None = None,
        targets: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
        assert isinstance(head, (CosineLinear, SplitCosineLinear))
        imprint = None
        if features is not None and targets is not None:
            classes = range(head.out_features, head.out_features + new)
            norm = head.weight.norm(dim=1).mean()
            imprint = imprinted_weights(features, targets, list(classes), norm)
        grown = grow_cosine(head, new, imprint)
        grown.fc1.requires_grad_(False)
        return grown

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        return lucir_loss(
            out.logits,
            targets,
            scores=out.scores,
            features=out.features,
            teacher_features=None if teacher is None else teacher.features,
            old=0 if teacher is None else old_classes(teacher),
            base=self.base,
            k=self.k,
            margin=self.margin,
            ranking_weight=self.ranking_weight,
        )


@dataclasses.dataclass(frozen=True)
class Mnemonics(LUCIR):
    """Mnemonics (Liu et al. 2020) on LUCIR's losses: exemplars are learned, then fine-tuned on.

    Steps and learning rates of the exemplars, and that the head alone is fine-tuned, are ours: the
    published ones do not carry over to 8-bit exemplars and small memories.
    """

    name: ClassVar[str] = "mnemonics"
    learns_exemplars: ClassVar[bool] = True

    refine_steps: int = 20
    refine_lr: float = 2e-3
    inner_lr: float = 1.0
    inner_steps: int = 5
    refine_batch: int = 100
    finetune_epochs: int = 10
    finetune_lr: float = 0.05

    @property
    def fine_tuning(self) -> FineTuning | None:
        return _of_the_head(self.finetune_epochs, self.finetune_lr)

    def refine(
        self,
        net: IncrementalNet,
        images: Tensor,
        labels: Tensor,
        validation: Iterable[Sequence[Any]],
        bounds: tuple[Tensor, Tensor],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        return refine_exemplars(
            net,
            images,
            labels,
            validation,
            steps=self.refine_steps,
            lr=self.refine_lr,
            inner_lr=self.inner_lr,
            inner_steps=self.inner_steps,
            head="fc",
            bounds=bounds,
            batch_size=min(self.refine_batch, len(images)),
            generator=generator,
        )


@dataclasses.dataclass(frozen=True)
class PODNet(Method):
    """PODNet (Douillard et al. 2020): pooled maps are kept, ten proxies for each class."""

    name: ClassVar[str] = "podnet"
    head_type: ClassVar[str] = "proxies"
    imprints: ClassVar[bool] = True
    schedule: ClassVar[str] = "cosine"

    spatial_weight: float = 3.0
    flat_weight: float = 1.0
    proxies: int = 10
    finetune_epochs: int = 20
    finetune_lr: float = 0.05

    @property
    def fine_tuning(self) -> FineTuning | None:
        return _of_the_head(self.finetune_epochs, self.finetune_lr)

    @property
    def needs_maps(self) -> bool:
        return True

    def head(self, in_features: int, classes: int) -> nn.Module:
        return LocalSimilarityClassifier(in_features, classes, self.proxies)

    def grow(
        self,
        head: nn.Module,
        new: int,
        features: Tensor | None = None,
        targets: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
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
        assert isinstance(head, LocalSimilarityClassifier)
        scores = head.similarities(features)
        return scores, head.eta * scores

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        assert isinstance(head, LocalSimilarityClassifier)
        seen = out.logits.shape[1]
        kept: dict[str, Any] = {}
        if teacher is not None:
            kept = {
                "features": out.features,
                "teacher_features": teacher.features,
                "maps": out.maps,
                "teacher_maps": teacher.maps,
            }
        return podnet_loss(
            out.scores,
            targets,
            scale=head.eta,
            seen=seen,
            new=seen if teacher is None else seen - old_classes(teacher),
            spatial_weight=self.spatial_weight,
            flat_weight=self.flat_weight,
            **kept,
        )


def _of_the_head(epochs: int, lr: float) -> FineTuning | None:
    return FineTuning(epochs, lr, head_only=True) if epochs else None


METHODS: dict[str, type[Method]] = {m.name: m for m in (ICaRL, LUCIR, PODNet, Mnemonics)}
