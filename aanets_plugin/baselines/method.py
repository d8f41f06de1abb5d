"""The interface of a class-incremental method, independent of any training loop.

A loop that trains a `Method` does the following in each phase after the first (the steps are in
`lifecycle.py`):

    teacher = teacher_of(net)
    grow_head(method, net, new, samples)
    train MethodLoss(method, net, teacher) on new data and exemplars
    herd exemplars; replace them by `method.refine(...)` if `method.learns_exemplars`
    train `fine_tuning(method, net)` on exemplars

The columns of the logits are the classes in the order in which they arrived.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.feature_maps import stage_maps
from aanets_plugin.field_checks import check_fields

if TYPE_CHECKING:
    from aanets_plugin.baselines.network import IncrementalNet

Rule = Literal["head", "nearest_mean"]
"""How classes are predicted: by the head, or by the nearest mean of the exemplars' features."""


@dataclasses.dataclass(frozen=True)
class Output:
    """The outputs of a network for a batch. `logits` are `scores` times the head's scale."""

    features: Tensor
    scores: Tensor
    logits: Tensor
    maps: Sequence[Tensor] = ()


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Settings of the fine-tuning of the head on exemplars at the end of a phase."""

    epochs: int
    lr: float


@dataclasses.dataclass(frozen=True)
class Method:
    """Base class of the methods. The dataclass fields of a subclass are its hyperparameters.

    They are checked when a method is made: see `check_fields`.
    """

    name: ClassVar[str]
    """The name in commands, folders and files."""
    title: ClassVar[str]
    """The name in tables and figures."""
    predicts_by: ClassVar[Rule] = "head"
    """The prediction rule of the published results."""
    head_type: ClassVar[str] = "cosine"
    """Methods with the same head type share the network of the first phase."""
    schedule: ClassVar[str] = "step"
    """The learning rate schedule, "step" or "cosine"."""
    keeps_all_data: ClassVar[bool] = False
    """Whether the method trains on all data of all phases so far."""
    needs_maps: ClassVar[bool] = False
    """Whether the loss compares the feature maps of the stages."""
    learns_exemplars: ClassVar[bool] = False
    """Whether `refine` is called on the herded exemplars."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def imprints(self) -> bool:
        """Whether `grow` uses features of the new classes. If not, they need not be computed."""
        return False

    @property
    def fine_tuning(self) -> FineTuning | None:
        """Settings of the fine-tuning on exemplars; None if the method has none."""
        return None

    def head(self, in_features: int, classes: int) -> nn.Module:
        """Return the head of the first phase."""
        raise NotImplementedError

    def grow(
        self,
        head: nn.Module,
        new: int,
        features: Tensor | None = None,
        targets: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
        """Return the head of the next phase, with `new` more classes.

        `features` and `targets` are those of the new classes; without them the new weights are
        random.
        """
        raise NotImplementedError

    def score(self, head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and logits."""
        raise NotImplementedError

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        """Return the loss of a batch. `teacher` is None in the first phase and in fine-tuning."""
        raise NotImplementedError

    def observe(self, net: IncrementalNet, x: Tensor, *, maps: bool = False) -> Output:
        """Run `net` on a batch. With `maps=True`, collect feature maps if the loss needs them."""
        collected: list[Tensor] = []
        if maps and self.needs_maps:
            with stage_maps(net.backbone) as collected:
                features = net.features(x)
        else:
            features = net.features(x)
        return Output(features, *self.score(net.fc, features), collected)

    def refine(
        self,
        net: IncrementalNet,
        images: Tensor,
        labels: Tensor,
        validation: Iterable[Sequence[Any]],
        bounds: tuple[Tensor, Tensor],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return learned exemplars instead of `images`, with pixels between the two `bounds`."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Return the name and the hyperparameters."""
        return {"name": self.name, **dataclasses.asdict(self)}
