"""Arguments as they should be, and values as errors quote them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from aanets_plugin.errors import ConfigurationError


def integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def positive(value: Any, name: str, what: str) -> int:
    number = integer(value)
    if number is None or number < 1:
        raise ConfigurationError(
            f"{name}={value!r}; expected an integer of at least 1; pass the number of {what}"
        )
    return number


def random_state(seed: int) -> np.random.RandomState:
    number = integer(seed)
    if number is None or not 0 <= number < 2**32:
        raise ConfigurationError(f"seed={seed!r}; expected an integer from 0 to {2**32 - 1}")
    # numpy promises that RandomState's streams never change, so a seed means the same everywhere.
    return np.random.RandomState(number)


def few(items: Iterable[Any], limit: int = 8) -> str:
    shown = [str(item) for item in items]
    more = f", … ({len(shown)} in all)" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more
