"""check_fields: the values of a dataclass against the types and limits that its fields declare.

A dataclass calls it in its `__post_init__`:

    epochs: Count = 160
    lr: Positive = 0.1
    schedule: Literal["step", "cosine"] | None = None
"""

import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from aanets_plugin.checks import integer, real
from aanets_plugin.errors import ConfigurationError


@dataclass(frozen=True)
class Limits:
    """The numbers that a field may have. They are finite."""

    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf

    def allow(self, value: float) -> bool:
        """Whether `value` is within the limits."""
        return self.least <= value and self.above < value < self.below

    def __str__(self) -> str:
        signs = {"≥": self.least, ">": self.above, "<": self.below}
        return " and ".join(f"{s} {v:g}" for s, v in signs.items() if math.isfinite(v))


Count = Annotated[int, Limits(least=1)]
CountOrZero = Annotated[int, Limits(least=0)]
Positive = Annotated[float, Limits(above=0)]
PositiveOrZero = Annotated[float, Limits(least=0)]
Fraction = Annotated[float, Limits(least=0, below=1)]


def check_fields(settings: Any) -> None:
    """Check every field against its annotation; an error quotes the value and says what is allowed.

    Annotations are int, float, bool, str, `Literal`, `tuple[…, ...]`, these with `Limits` or with
    `| None`. Numbers of numpy and torch become those of Python, lists become tuples. Fields with
    any other annotation are not checked.
    """
    hints = _hints(type(settings))
    for field in fields(settings):
        hint, value = hints.get(field.name, Any), getattr(settings, field.name)
        try:
            checked = _checked(value, hint)
        except ValueError:
            raise ConfigurationError(
                f"{field.name}={value!r}: must be {_described(hint)}."
            ) from None
        object.__setattr__(settings, field.name, checked)


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:  # a class of the user's that names types of a function
        return {}


def _checked(value: Any, hint: Any) -> Any:
    """The value as the hint says; ValueError if it is something else."""
    kind, limits, choices = _parts(hint)
    if kind is types.UnionType or kind is typing.Union:
        return None if value is None else _checked(value, choices[0])
    if kind is typing.Literal:
        # A list or an array has no hash or no truth value.
        found = [choice for choice in choices if type(choice) is type(value) and choice == value]
        return _required(found)
    if kind is tuple:
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise ValueError
        return tuple(_checked(item, choices[0]) for item in value)
    if kind in (int, float):
        number = integer(value) if kind is int else real(value)
        return _required([number] if number is not None and limits.allow(number) else [])
    return _required([value] if kind not in (bool, str) or type(value) is kind else [])


def _required(found: list[Any]) -> Any:
    if not found:
        raise ValueError
    return found[0]


def _parts(hint: Any) -> tuple[Any, Limits, tuple[Any, ...]]:
    """The type, its limits, and the arguments of the type."""
    if typing.get_origin(hint) is Annotated:
        kind, limits = typing.get_args(hint)[:2]
        return kind, limits, ()
    args = typing.get_args(hint)
    return typing.get_origin(hint) or hint, Limits(), args


def _described(hint: Any) -> str:
    """What is allowed, in words."""
    kind, limits, choices = _parts(hint)
    if kind is types.UnionType or kind is typing.Union:
        return f"{_described(choices[0])}, or None"
    if kind is typing.Literal:
        return " or ".join(map(repr, choices))
    if kind is tuple:
        return f"a tuple, each entry {_described(choices[0])}"
    names = {int: "an integer", float: "a finite number", bool: "True or False", str: "a string"}
    return " ".join([names[kind], str(limits)]).strip()
