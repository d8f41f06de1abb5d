"""glibc's allocator in benchmarks.

By default it gives large blocks back to the system when they are freed and asks for them again in
the next step, and the system hands out every page anew. Time for that grows with the activations
of a network, in steps that glibc's thresholds make, and says nothing about its arithmetic.
"""

from __future__ import annotations

import os


def keep_memory() -> None:
    """Processes that are started from now on keep what they free."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**32)
    os.environ["MALLOC_TRIM_THRESHOLD_"] = str(2**34)
