"""The settings of a run: architecture, memory, training. They are checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from aanets_plugin.baselines.lifecycle import cosine_factor
from aanets_plugin.budget import MemoryBudget
from aanets_plugin.errors import ConfigurationError


@dataclass(frozen=True)
class AANets:
    """Blocks and stem of `convert_to_aanet`; `alpha_lr` is `BilevelStrategy`'s, 0 keeps α fixed."""

    blocks: tuple[str, ...] = ("all", "scaling")
    stem: str = "stable"
    alpha_lr: float = 0.03
    balanced_per_class: int | None = None
    """Samples of each class in an α update; by default as many as the smallest class has."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha_lr < math.inf:
            raise ConfigurationError(
                f"alpha_lr={self.alpha_lr}: expected a number that is not negative."
            )
        if self.balanced_per_class is not None and self.balanced_per_class < 1:
            raise ConfigurationError(
                f"balanced_per_class={self.balanced_per_class}: expected at least 1, or None."
            )


@dataclass(frozen=True)
class Memory:
    """Exemplars: so many of each class, or so many in total, shared by the classes seen.

    `strict` takes the extra parameters of AANets out of the exemplars (the paper's supplement B).
    """

    per_class: int | None = None
    total: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if (self.per_class is None) == (self.total is None):
            raise ConfigurationError(
                f"per_class={self.per_class}, total={self.total}: expected one of the two, the "
                f"number of exemplars of each class or of all classes together."
            )
        if (self.per_class or self.total or 0) < 1:
            raise ConfigurationError(
                f"per_class={self.per_class}, total={self.total}: expected at least 1 exemplar."
            )

    def left_beside(self, net: nn.Module, classes: int, input_shape: tuple[int, ...]) -> Memory:
        """The memory that a converted network leaves: this one, or a smaller one if `strict`."""
        if not self.strict:
            return self
        if self.per_class is not None:
            budget = MemoryBudget(self.per_class, classes, input_shape)
            return Memory(per_class=budget.exemplars_for(net))
        assert self.total is not None
        return Memory(total=MemoryBudget(self.total, 1, input_shape).exemplars_for(net))

    def of_each(self, classes: int) -> int:
        """Exemplars of a class when so many classes share the memory."""
        if self.per_class is not None:
            return self.per_class
        assert self.total is not None
        return self.total // classes


@dataclass(frozen=True)
class Training:
    """The lower level. Defaults are the paper's for CIFAR-100."""

    epochs: int = 160
    base_epochs: int | None = None
    """Epochs of the first phase; by default `epochs`."""
    batch_size: int = 128
    """In all processes together."""
    lr: float = 0.1
    base_lr: float | None = None
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str | None = None
    """``"step"``, ``"cosine"``, or None for the method's own."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Where in a phase the learning rate falls to a tenth, as shares of its epochs."""
    workers: int = 0

    def __post_init__(self) -> None:
        positive = {
            "epochs": self.epochs,
            "base_epochs": self.epochs_of(0),
            "batch_size": self.batch_size,
            "lr": self.lr,
            "base_lr": self.lr_of(0),
        }
        for name, value in positive.items():
            if not value > 0:
                raise ConfigurationError(f"{name}={value}: expected more than 0.")
        if self.schedule not in (None, "step", "cosine"):
            raise ConfigurationError(
                f"schedule={self.schedule!r}: expected 'step', 'cosine', or None for the method's."
            )

    def epochs_of(self, phase: int) -> int:
        return self.base_epochs if phase == 0 and self.base_epochs is not None else self.epochs

    def lr_of(self, phase: int) -> float:
        return self.base_lr if phase == 0 and self.base_lr is not None else self.lr

    def factor(self, epoch: int, epochs: int, schedule: str) -> float:
        """What the learning rate is multiplied with in this epoch, counted from 0.

        >>> [Training().factor(epoch, 160, "step") for epoch in (0, 79, 80, 120)]
        [1.0, 1.0, 0.1, 0.01]
        >>> Training().factor(0, 1, "step")
        1.0
        """
        if schedule == "cosine":
            return cosine_factor(epoch, epochs)
        passed = sum(epoch >= max(1, round(share * epochs)) for share in self.milestones)
        return float(10.0**-passed)
