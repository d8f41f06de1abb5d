"""Arguments as they should be; an error where they are not."""

from __future__ import annotations

import operator
from typing import Any

from aanets_plugin.errors import ConfigurationError


def integer(value: Any) -> int | None:
    """The integer that `value` is, numpy's and torch's included; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def positive(value: Any, name: str, what: str) -> int:
    """An integer of at least 1: the number of `what`."""
    number = integer(value)
    if number is None or number < 1:
        raise ConfigurationError(
            f"{name}={value!r}; expected an integer of at least 1; pass the number of {what}"
        )
    return number
