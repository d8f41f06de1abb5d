"""Which classes come when: how many in each phase, and in the paper's order."""

from __future__ import annotations

import numpy as np

from aanets_plugin.checks import integer, positive
from aanets_plugin.errors import ConfigurationError


def check_split(classes: int, *, base_classes: int | None = None, phases: int) -> list[int]:
    """How many classes each phase brings; an error where they cannot be dealt out evenly.

    By default half of the classes come first, as phase 0, and the others in `phases` equal parts:
    the paper's protocol. `base_classes` says how many come first; with 0 there is no large first
    phase, and all classes come in `phases` equal parts.

    >>> check_split(100, phases=5)
    [50, 10, 10, 10, 10, 10]
    >>> check_split(10, base_classes=4, phases=3)
    [4, 2, 2, 2]
    >>> check_split(10, base_classes=0, phases=5)
    [2, 2, 2, 2, 2]
    """
    classes = positive(classes, "classes")
    phases = positive(phases, "phases")
    if base_classes is None:
        if classes % 2:
            base = classes // 2 + 1
            rest = f", for example {base}, with phases one of {_divisors(classes - base)}"
            raise ConfigurationError(
                f"{classes} classes have no half for the first phase; pass base_classes"
                + (rest if classes > base else "=0 with phases=1")
            )
        base_classes = classes // 2
    else:
        number = integer(base_classes)
        if number is None or not 0 <= number < classes:
            raise ConfigurationError(
                f"base_classes={base_classes!r} of {classes} classes; expected an integer from 0 "
                f"to {classes - 1}; for all classes at once pass base_classes=0 and phases=1"
            )
        base_classes = number
    rest_of_classes = classes - base_classes
    if rest_of_classes % phases:
        after = f"that come after the first {base_classes} of {classes}" if base_classes else ""
        raise ConfigurationError(
            f"phases={phases} does not divide the {rest_of_classes} classes {after}".rstrip()
            + f"; expected one of {_divisors(rest_of_classes)}; pass one of these, or another "
            "base_classes"
        )
    first = [base_classes] if base_classes else []
    return first + [rest_of_classes // phases] * phases


def paper_order(name: str, classes: int, seed: int = 1993) -> list[int]:
    """The order in which the paper learns classes: 0, 1, … shuffled by numpy with the seed 1993.

    The rule is one for all datasets; `name` is there for the error. numpy's global state is neither
    used nor changed.

    >>> paper_order("cifar100", 100)[:5]
    [68, 56, 78, 8, 23]
    """
    order = np.arange(positive(classes, "classes"))
    random_state(seed).shuffle(order)
    return [int(label) for label in order]


def _divisors(number: int) -> str:
    return ", ".join(str(part) for part in range(1, number + 1) if number % part == 0)


def random_state(seed: int) -> np.random.RandomState:
    """A generator of its own, so that numpy's global one is left alone."""
    number = integer(seed)
    if number is None or not 0 <= number < 2**32:
        raise ConfigurationError(f"seed={seed!r}; expected an integer from 0 to {2**32 - 1}")
    # numpy promises that RandomState's streams never change, so a seed means the same everywhere.
    return np.random.RandomState(number)
