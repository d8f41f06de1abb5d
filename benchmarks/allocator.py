"""glibc's allocator in benchmarks.

By default it gives large blocks back to the system when they are freed and asks for them again in
the next step; the system then hands out every page anew. That takes about a tenth of a training
step on a CPU, and a larger share the more activations a network has. It is the same for every
network that outgrows glibc's thresholds, and says nothing about the network.
"""

from __future__ import annotations

import os


def keep_memory() -> None:
    """Processes that are started from now on keep what they free."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**32)
    os.environ["MALLOC_TRIM_THRESHOLD_"] = str(2**34)
