"""How many classes each phase has, and the paper's class order."""

import numpy as np

from aanets_plugin.checks import integer, positive
from aanets_plugin.errors import ConfigurationError


def check_split(classes: int, *, base_classes: int | None = None, phases: int) -> list[int]:
    """The number of new classes in each phase; an error if they cannot be divided evenly.

    Args:
        classes: the number of classes.
        base_classes: classes of the first phase. Default: half of them, as in the paper. With 0
            there is no large first phase.
        phases: the number of equal phases after the first one; with `base_classes=0` of all.

    Example:
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


def paper_order(classes: int, seed: int = 1993) -> list[int]:
    """The paper's class order: 0, 1, … shuffled by numpy with seed 1993, for every dataset.

    numpy's global random state is neither used nor changed.

    Example:
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
