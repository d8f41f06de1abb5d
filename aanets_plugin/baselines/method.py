"""What sets one class-incremental method apart from another, free of any training loop.

A loop that trains a :class:`Method` does, in every phase but the first:

    teacher = copy of the net, frozen, in eval mode
    net.fc = method.grow(net.fc, new, features, targets)       # of the new data
    for x, y in new data and exemplars:
        loss = method.loss(net.fc, method.observe(net, x), y, teacher's output or None)
    exemplars by herding; `method.refine` learns better ones, if `method.learns_exemplars`
    fine-tuning on exemplars, if `method.fine_tuning` says so

Columns of logits are classes in the order of their arrival.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.feature_maps import stage_maps
from aanets_plugin.baselines.network import IncrementalNet

Rule = Literal["head", "nearest_mean"]
"""What decides on a class: the network's head, or the nearest mean of the exemplars."""


@dataclasses.dataclass(frozen=True)
class Output:
    """What a network makes of a batch. `logits` are `scores` times the head's learned factor."""

    features: Tensor
    scores: Tensor
    logits: Tensor
    maps: Sequence[Tensor] = ()


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """A last training on exemplars alone, equally many of each class."""

    epochs: int
    lr: float
    head_only: bool


@dataclasses.dataclass(frozen=True)
class Method:
    """Base class; the fields of a child are its hyperparameters."""

    name: ClassVar[str]
    predicts_by: ClassVar[Rule] = "head"
    """The rule behind its published numbers."""
    head_type: ClassVar[str] = "cosine"
    """Methods with the same one train the same network in the first phase."""
    schedule: ClassVar[str] = "step"
    keeps_all_data: ClassVar[bool] = False
    imprints: ClassVar[bool] = False
    """Whether `grow` makes use of features; without it a loop need not compute them."""
    learns_exemplars: ClassVar[bool] = False
    """Whether exemplars go through `refine` after herding."""

    @property
    def fine_tuning(self) -> FineTuning | None:
        return None

    @property
    def needs_maps(self) -> bool:
        """Whether the loss compares the maps of the stages."""
        return False

    def head(self, in_features: int, classes: int) -> nn.Module:
        """The head of the first phase."""
        raise NotImplementedError

    def grow(
        self,
        head: nn.Module,
        new: int,
        features: Tensor | None = None,
        targets: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
        """The head of the next phase, with `new` more classes.

        `features` and `targets` are those of the new classes' samples; without them new weights
        are random, for a state_dict to be loaded into.
        """
        raise NotImplementedError

    def score(self, head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and logits."""
        raise NotImplementedError

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        """The loss of a batch; `teacher` is None in the first phase and in fine-tuning."""
        raise NotImplementedError

    def observe(self, net: IncrementalNet, x: Tensor, *, maps: bool = False) -> Output:
        """Run `net` on a batch; with `maps`, keep those of its stages, if the loss needs them."""
        if maps and self.needs_maps:
            with stage_maps(net.backbone) as found:
                features = net.features(x)
        else:
            found, features = [], net.features(x)
        return Output(features, *self.score(net.fc, features), found)

    def refine(
        self,
        net: IncrementalNet,
        images: Tensor,
        labels: Tensor,
        validation: Iterable[Sequence[Any]],
        bounds: tuple[Tensor, Tensor],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Better exemplars than the herded `images`, of the same labels and within `bounds`."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Name and hyperparameters."""
        return {"name": self.name, **dataclasses.asdict(self)}


def old_classes(teacher: Output) -> int:
    """How many classes the teacher knows."""
    return teacher.logits.shape[1]
