"""Argument validation."""

from __future__ import annotations

import operator
from typing import Any

from aanets_plugin.errors import ConfigurationError


def integer(value: Any) -> int | None:
    """`value` as an int if it is an integer of Python, numpy or torch, otherwise None."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def positive(value: Any, name: str) -> int:
    """`value` as an int; an error that calls it `name` unless it is an integer ≥ 1."""
    number = integer(value)
    if number is None or number < 1:
        raise ConfigurationError(f"{name}={value!r}: must be an integer ≥ 1.")
    return number
