"""The settings of a run: AANets, exemplar memory and training. Values are checked on creation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from aanets_plugin.baselines.lifecycle import cosine_factor
from aanets_plugin.budget import MemoryBudget
from aanets_plugin.config import DEFAULTS, EXEMPLARS_PER_CLASS, AANetConfig
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.field_checks import (
    Count,
    CountOrZero,
    Fraction,
    Positive,
    PositiveOrZero,
    check_fields,
)


def AANets(
    blocks: Sequence[str] = DEFAULTS.blocks,
    stem: str = DEFAULTS.stem,
    alpha_lr: float | None = None,
    balanced_per_class: int | None = DEFAULTS.per_class,
    **options: Any,
) -> AANetConfig:
    """Short form of `AANetConfig` for runs.

    `alpha_lr` is its `lr`, `balanced_per_class` its `per_class`. All other options of `AANetConfig`
    can be passed by name.
    """
    names: dict[str, Any] = {"lr": alpha_lr, "per_class": balanced_per_class}
    return AANetConfig(blocks=blocks, stem=stem, **names, **options)


@dataclass(frozen=True)
class Memory:
    """How many exemplars of old classes are kept. Default: 20 per class, as in the paper.

    Args:
        per_class: exemplars of each class.
        total: exemplars of all classes together, shared equally by the classes seen so far.
        strict: count the additional parameters of AANets as memory, and keep fewer exemplars by
            that amount (the paper's supplement B).
    """

    per_class: Count | None = None
    total: Count | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.per_class is None and self.total is None:
            object.__setattr__(self, "per_class", EXEMPLARS_PER_CLASS)
        if self.per_class is not None and self.total is not None:
            raise ConfigurationError(
                f"per_class={self.per_class}, total={self.total}: must not both be set. Leave one "
                f"of them out."
            )

    def reduced_for(self, net: nn.Module, classes: int, input_shape: tuple[int, ...]) -> Memory:
        """The memory beside a converted network: smaller if `strict`, otherwise the same."""
        if not self.strict:
            return self
        if self.per_class is not None:
            budget = MemoryBudget(self.per_class, classes, input_shape)
            return Memory(per_class=budget.exemplars_for(net))
        assert self.total is not None
        return Memory(total=MemoryBudget(self.total, 1, input_shape).exemplars_for(net))

    def exemplars_per_class(self, classes: int) -> int:
        """Exemplars of each class when `classes` classes have been seen."""
        if self.per_class is not None:
            return self.per_class
        assert self.total is not None
        return self.total // classes


@dataclass(frozen=True)
class Training:
    """How the network is trained (the lower level). The defaults are the paper's for CIFAR-100."""

    epochs: Count = 160
    base_epochs: Count | None = None
    """Epochs of the first phase. Default: `epochs`."""
    batch_size: Count = 128
    """Samples in a step, over all processes together."""
    lr: Positive = 0.1
    base_lr: Positive | None = None
    """Learning rate of the first phase. Default: `lr`."""
    momentum: Fraction = 0.9
    weight_decay: PositiveOrZero = 5e-4
    schedule: Literal["step", "cosine"] | None = None
    """Default: the schedule of the method."""
    milestones: tuple[PositiveOrZero, ...] = (0.5, 0.75)
    """When "step" divides the learning rate by 10, as fractions of the epochs of a phase."""
    workers: CountOrZero = 0
    """Processes that load images."""
    channels_last: bool = True
    """Store images and kernels with the channels last, if the network allows for it: the same
    results up to rounding, in less time."""

    def __post_init__(self) -> None:
        check_fields(self)

    def epochs_of(self, phase: int) -> int:
        """The epochs of a phase, from 0."""
        return self.base_epochs if phase == 0 and self.base_epochs is not None else self.epochs

    def lr_of(self, phase: int) -> float:
        """The learning rate at the start of a phase, from 0."""
        return self.base_lr if phase == 0 and self.base_lr is not None else self.lr

    def factor(self, epoch: int, epochs: int, schedule: str) -> float:
        """The factor on the learning rate in this epoch, counted from 0.

        Examples:
            >>> [Training().factor(epoch, 160, "step") for epoch in (0, 79, 80, 120)]
            [1.0, 1.0, 0.1, 0.01]
        """
        if schedule == "cosine":
            return cosine_factor(epoch, epochs)
        passed = sum(epoch >= max(1, round(share * epochs)) for share in self.milestones)
        return float(10.0**-passed)
