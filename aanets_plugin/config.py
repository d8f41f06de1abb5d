"""AANetConfig: every option of the architecture and of α, with its default and its check."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aanets_plugin.checks import check_flags, check_function, in_range, positive, real
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

    Examples:
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
        check_flags(normalize=self.normalize, update_base=self.update_base, balanced=self.balanced)
        if self.official is True:
            object.__setattr__(self, "official", "lucir")
        if self.official is not False and not _is_one_of(self.official, OFFICIAL_LOOPS):
            raise ConfigurationError(
                f"official={self.official!r}: must be {_either(OFFICIAL_LOOPS)}, or False."
            )
        lr = (1e-8 if self.official else 0.03) if self.lr is None else self.lr
        momentum = (0.9 if self.official else 0.0) if self.momentum is None else self.momentum
        blocks = _checked_blocks(self.blocks)
        resolved: dict[str, Any] = {
            "blocks": blocks,
            "stages": None if self.stages is None else _checked_stages(self.stages),
            "alpha": None if self.alpha is None else _checked_alpha(self.alpha, len(blocks)),
            "lr": in_range(lr, "lr", 0),
            "momentum": in_range(momentum, "momentum", 0, 1),
            "normalize": self.normalize and not self.official,
        }
        for name in ("max_batches", "per_class"):
            value = getattr(self, name)
            resolved[name] = None if value is None else positive(value, name)
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        if not _is_one_of(self.stem, STEMS):
            raise ConfigurationError(f"stem={self.stem!r}: must be {_either(STEMS)}.")
        if self.phi_decay is not None:
            in_range(self.phi_decay, "phi_decay", 0)
            if not self.official:
                raise ConfigurationError(
                    f"phi_decay={self.phi_decay}: needs official. Leave it out, or pass "
                    f"official='lucir'."
                )
        if self.official and len(blocks) != 2:
            raise ConfigurationError(
                f"blocks={blocks!r}: the official update needs two branches. Leave out "
                f"official, or pass two blocks."
            )
        if self.schedule is not None:
            factor_of(self.schedule, 0)

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


def factor_of(schedule: Callable[[int], float], epoch: int) -> float:
    """Return the factor on `lr` in this epoch."""
    check_function(schedule, "schedule", "schedule(epoch)")
    value: Any = schedule(epoch)
    factor = real(value)
    if factor is None or factor < 0:
        raise ConfigurationError(
            f"schedule({epoch}) returns {value!r:.80}: must be a number ≥ 0 and finite."
        )
    return factor


def _checked_blocks(blocks: Any) -> tuple[str, ...]:
    given = _items(blocks)
    if given is None:
        raise ConfigurationError(
            f"blocks={blocks!r:.80}: must have one entry per branch. Pass a tuple, such as "
            f"('all', 'scaling')."
        )
    unknown = [block for block in given if not _is_one_of(block, RULES)]
    if unknown or not given:
        what = f"{unknown[0]!r:.80} is not a block type" if unknown else "there is no branch"
        raise ConfigurationError(
            f"blocks={given!r:.200}: {what}. Pass one entry per branch: {_either(RULES)}."
        )
    return given


def _checked_stages(stages: Any) -> tuple[str, ...]:
    given = _items(stages)
    if given is None or not all(isinstance(name, str) for name in given):
        hint = f" Pass [{stages!r}]." if isinstance(stages, str) else ""
        raise ConfigurationError(f"stages={stages!r:.200}: must be a list of names.{hint}")
    if not given:
        raise ConfigurationError(
            f"stages={stages!r}: must name at least one module. Leave it out to have the stages "
            f"found."
        )
    return given


def _checked_alpha(alpha: Any, branches: int) -> tuple[float, ...]:
    weights = [real(weight) for weight in _items(alpha) or ()]
    known = [weight for weight in weights if weight is not None and 0 <= weight <= 1]
    if not len(known) == len(weights) == branches or abs(sum(known) - 1) > 1e-6:
        total = f"; these sum to {sum(known):g}" if known and len(known) == len(weights) else ""
        raise ConfigurationError(
            f"alpha={alpha!r:.200}: must be {branches} weights in [0, 1], one per branch, that sum "
            f"to one{total}."
        )
    return tuple(known)


def _items(value: Any) -> tuple[Any, ...] | None:
    """The items of a list, tuple or the like; None for text and for what has no items."""
    if isinstance(value, (str, bytes, bytearray, dict, set)) or not isinstance(value, Iterable):
        return None
    try:
        return tuple(value)
    except TypeError:  # an array without dimensions
        return None


def _is_one_of(value: Any, names: Sequence[str] | dict[str, Any]) -> bool:
    return isinstance(value, str) and value in names


def _either(names: Sequence[str] | dict[str, Any]) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}"


DEFAULTS = AANetConfig()
