"""Global random numbers that are given back as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the random states of torch, numpy and Python at the end of the block.

    Examples:
        >>> with random_state_kept():
        ...     noise = torch.randn(3)
    """
    numpy = sys.modules.get("numpy")  # not needed here; whoever draws from it has imported it
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
