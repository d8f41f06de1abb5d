"""Labels, datasets and random numbers for the tests of exemplars."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import TensorDataset

LABELS = [4, 4, 9, 4, 9, 2, 2, 4, 9, 2, 2]  # class 2: 4, class 4: 4, class 9: 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dataset_of(labels: Sequence[int], start: int = 0) -> TensorDataset:
    """Samples that are their own number, counted from ``start``."""
    return TensorDataset(torch.arange(start, start + len(labels)), torch.tensor(labels))
