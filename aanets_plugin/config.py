"""AANetConfig: every option of the architecture and of α, with its default and its check."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from aanets_plugin.checks import positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.scaling import RULES

STEMS = ("stable", "plastic", "paired")
OFFICIAL_LOOPS = ("lucir", "icarl")
EXEMPLARS_PER_CLASS = 20
"""The paper's number of exemplars per class, the default wherever exemplars are kept."""


@dataclasses.dataclass(frozen=True)
class AANetConfig:
    """The options of `convert_to_aanet` and `BilevelStrategy` in one object.

    The values are checked when the object is made. `convert_to_aanet`, `BilevelStrategy`, the
    adapters and the command line take their options and defaults from here.

    Example:
        >>> AANetConfig(blocks=("all", "frozen")).conversion["blocks"]
        ('all', 'frozen')
        >>> AANetConfig(official="lucir").lr
        1e-08
    """

    blocks: Sequence[str] = ("all", "scaling")
    """One entry per branch, from the plastic to the stable one: "all", "scaling" or "frozen"."""
    stem: str = "stable"
    """How the layers before the first stage learn: "stable", "plastic" or "paired"."""
    stages: Sequence[str] | None = None
    """Dotted names of the stages in forward order. Default: found in the network."""
    alpha: Sequence[float] | None = None
    """Initial aggregation weights, one per branch, that sum to one. Default: equal weights."""
    lr: float = None  # type: ignore[assignment]  # always a number afterwards
    """Step size of α; 0 keeps α fixed. Default: 0.03, with `official` the authors' 1e-8."""
    momentum: float = None  # type: ignore[assignment]  # likewise
    """Momentum of α's steps. Default: 0, with `official` the authors' 0.9."""
    normalize: bool = True
    """Scale each level's steps by its past gradients (AdaGrad). False: Eq. 8 as printed."""
    official: bool | str = False
    """Update α exactly as the authors' code does. "lucir": as in their loop for LUCIR, which never
    clears α's gradient; True is the same. "icarl": as in their loop for iCaRL, which clears it."""
    phi_decay: float | None = None
    """With `official`: weight decay that pulls φ towards 0; 5e-4 in the authors' code. Default: the
    weight decay of the optimizer, which pulls φ to 1."""
    schedule: Callable[[int], float] | None = None
    """Factor on `lr` as a function of the epoch in the phase, counted from 0."""
    update_base: bool = False
    """Multiply φ into θ_base after each phase (the paper's supplement A)."""
    max_batches: int | None = None
    """Batches of the balanced data in one update. Default: all."""
    per_class: int | None = None
    """Balanced samples of each class. Default: as many as the smallest class has."""
    balanced: bool = True
    """Learn α on a class-balanced subset. False: on all training data of the phase, for comparison
    (Table 1, row 6); `per_class` has no effect then."""

    def __post_init__(self) -> None:
        resolved: dict[str, Any] = {
            "blocks": _checked_blocks(self.blocks),
            "stages": None if self.stages is None else _checked_stages(self.stages),
            "lr": (1e-8 if self.official else 0.03) if self.lr is None else self.lr,
            "momentum": (0.9 if self.official else 0.0) if self.momentum is None else self.momentum,
            "normalize": self.normalize and not self.official,
            "official": "lucir" if self.official is True else self.official,
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        if self.stem not in STEMS:
            raise ConfigurationError(f"stem={self.stem!r}: must be {_either(STEMS)}.")
        if self.alpha is not None:
            object.__setattr__(self, "alpha", _checked_alpha(self.alpha, len(self.blocks)))
        if not 0 <= self.lr < math.inf:
            raise ConfigurationError(f"lr={self.lr}: must be ≥ 0 and finite.")
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"momentum={self.momentum}: must be ≥ 0 and < 1.")
        if self.official is not False and self.official not in OFFICIAL_LOOPS:
            raise ConfigurationError(
                f"official={self.official!r}: must be {_either(OFFICIAL_LOOPS)}, or False."
            )
        if self.phi_decay is not None and not (self.official and 0 <= self.phi_decay < math.inf):
            raise ConfigurationError(
                f"phi_decay={self.phi_decay}: must be ≥ 0 and finite, and needs official."
            )
        if self.official and len(self.blocks) != 2:
            raise ConfigurationError(
                f"blocks={self.blocks!r}: the official update needs two branches. Leave out "
                f"official, or pass two blocks."
            )
        for name in ("max_batches", "per_class"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), name)

    @property
    def initial_alpha(self) -> tuple[float, ...]:
        """α at the start of the first incremental phase."""
        count = len(self.blocks)
        return (1 / count,) * count if self.alpha is None else tuple(self.alpha)

    @property
    def conversion(self) -> dict[str, Any]:
        """The keyword arguments of `convert_to_aanet`."""
        return {name: getattr(self, name) for name in ("blocks", "stem", "stages", "alpha")}

    @property
    def learning(self) -> dict[str, Any]:
        """The keyword arguments of `BilevelStrategy`; those of the official update, if chosen."""
        names = ["lr", "momentum", "schedule", "update_base", "max_batches"]
        options = {name: getattr(self, name) for name in names}
        if self.official:
            return {**options, "loop": self.official, "phi_decay": self.phi_decay}
        return {**options, "normalize": self.normalize}


def _checked_blocks(blocks: Sequence[str]) -> tuple[str, ...]:
    if isinstance(blocks, str):
        raise ConfigurationError(
            f"blocks={blocks!r}: must have one entry per branch. Pass a tuple, such as "
            f"('all', 'scaling')."
        )
    blocks = tuple(blocks)
    unknown = [block for block in blocks if block not in RULES]
    if unknown or not blocks:
        what = f"{unknown[0]!r} is not a block type" if unknown else "there is no branch"
        raise ConfigurationError(
            f"blocks={blocks!r}: {what}. Pass one entry per branch: {_either(RULES)}."
        )
    return blocks


def _checked_stages(stages: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stages, str):
        raise ConfigurationError(f"stages={stages!r}: must be a list. Pass [{stages!r}].")
    if not stages:
        raise ConfigurationError(
            f"stages={stages!r}: must name at least one module. Leave it out to have the stages "
            f"found."
        )
    return tuple(stages)


def _checked_alpha(alpha: Sequence[float], branches: int) -> tuple[float, ...]:
    weights = tuple(float(weight) for weight in alpha)
    in_range = all(0 <= weight <= 1 for weight in weights)
    if len(weights) != branches or not in_range or abs(sum(weights) - 1) > 1e-6:
        raise ConfigurationError(
            f"alpha={weights}: must be {branches} weights in [0, 1], one per branch, that sum to "
            f"one; these sum to {sum(weights):g}."
        )
    return weights


def _either(names: Sequence[str] | dict[str, Any]) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}"


DEFAULTS = AANetConfig()
