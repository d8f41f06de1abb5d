"""How many classes each phase has, and in which order they are learned."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aanets_plugin.checks import integer, positive
from aanets_plugin.errors import ConfigurationError

PAPER_SEED = 1993
"""The seed of the paper's class order."""


def check_split(classes: int, *, base_classes: int | None = None, phases: int) -> list[int]:
    """The number of new classes in each phase; an error if they cannot be divided evenly.

    Args:
        classes: the number of classes.
        base_classes: classes of the first phase. Default: half of them, as in the paper. With 0
            there is no large first phase.
        phases: the number of equal phases after the first one; with `base_classes=0` of all.

    Examples:
        >>> check_split(100, phases=5)
        [50, 10, 10, 10, 10, 10]
        >>> check_split(10, base_classes=0, phases=5)
        [2, 2, 2, 2, 2]
    """
    classes = positive(classes, "classes")
    phases = positive(phases, "phases")
    if base_classes is None:
        if classes % 2:
            base = classes // 2 + 1
            example = f"={base} and phases as one of {_divisors(classes - base)}"
            raise ConfigurationError(
                f"classes={classes}: an odd number cannot be halved for the first phase. Pass for "
                f"example base_classes{example if classes > base else '=0 and phases=1'}."
            )
        base_classes = classes // 2
    else:
        number = integer(base_classes)
        if number is None or not 0 <= number < classes:
            raise ConfigurationError(
                f"base_classes={base_classes!r}: must be an integer from 0 to {classes - 1}. For "
                f"all classes in one phase pass base_classes=0 and phases=1."
            )
        base_classes = number
    rest_of_classes = classes - base_classes
    if rest_of_classes % phases:
        after = f" after the first {base_classes}" if base_classes else ""
        raise ConfigurationError(
            f"phases={phases}: must divide the {rest_of_classes} classes{after}. Pass one of "
            f"{_divisors(rest_of_classes)}, or another base_classes."
        )
    first = [base_classes] if base_classes else []
    return first + [rest_of_classes // phases] * phases


def check_increments(increments: Sequence[int], classes: int) -> list[int]:
    """The number of new classes in each phase, if they add up to all classes.

    Examples:
        >>> check_increments([4, 1, 2, 3], 10)
        [4, 1, 2, 3]
    """
    numbers = [positive(number, "each number in increments") for number in increments]
    if sum(numbers) != classes:
        given = ",".join(map(str, numbers))
        raise ConfigurationError(
            f"increments={given}: they add up to {sum(numbers)} classes, must be {classes}. Change "
            f"a number, or add a phase for the classes that are missing."
        )
    return numbers


def describe_increments(increments: Sequence[int]) -> str:
    """The phases in a few words.

    Examples:
        >>> describe_increments([50, 10, 10]), describe_increments([2, 2]), describe_increments([4])
        ('50 classes first, then 2 x 10 classes', '2 x 2 classes', '1 x 4 classes')
        >>> describe_increments([4, 1, 2, 3])
        'phases of 4, 1, 2, 3 classes'
    """
    first, *rest = increments
    if len(set(increments)) == 1:
        return f"{len(increments)} x {first} classes"
    if len(set(rest)) == 1:
        return f"{first} classes first, then {len(rest)} x {rest[0]} classes"
    return f"phases of {', '.join(map(str, increments))} classes"


def read_order(choice: str, classes: int) -> list[int]:
    """A class order by a seed, or from a file with all classes as numbers from 0.

    Examples:
        >>> read_order("1993", 100) == paper_order(100)
        True
    """
    if re.fullmatch(r"-?\d+", choice):
        return paper_order(classes, int(choice))
    file = Path(choice).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"order {choice!r} cannot be read ({error}). Pass a seed such as {PAPER_SEED}, or a "
            f"text file with all classes as numbers from 0."
        ) from error
    words = re.split(r"[\s,]+", text.strip().strip("[]").strip())
    wrong = [word for word in words if not word.isdecimal()]
    if wrong:
        raise ConfigurationError(
            f"{choice!r} has {wrong[0]!r:.40}: must be the classes as numbers from 0, separated by "
            f"commas or spaces."
        )
    return [int(word) for word in words]


def paper_order(classes: int, seed: int = PAPER_SEED) -> list[int]:
    """The paper's class order: 0, 1, … shuffled by numpy with seed 1993, for every dataset.

    numpy's global random state is neither used nor changed.

    Examples:
        >>> paper_order(100)[:5]
        [68, 56, 78, 8, 23]
    """
    order = np.arange(positive(classes, "classes"))
    random_state(seed).shuffle(order)
    return [int(label) for label in order]


def _divisors(number: int) -> str:
    return ", ".join(str(part) for part in range(1, number + 1) if number % part == 0)


def random_state(seed: int) -> np.random.RandomState:
    """A separate generator, so that numpy's global one stays as it is."""
    number = integer(seed)
    if number is None or not 0 <= number < 2**32:
        raise ConfigurationError(f"seed={seed!r}: must be an integer from 0 to {2**32 - 1}.")
    # numpy guarantees that RandomState's streams never change between versions.
    return np.random.RandomState(number)
