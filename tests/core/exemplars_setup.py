"""Labels, datasets and random numbers for the tests of exemplars."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

LABELS = [4, 4, 9, 4, 9, 2, 2, 4, 9, 2, 2]  # class 2: 4, class 4: 4, class 9: 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dataset_of(labels: Sequence[int], start: int = 0) -> TensorDataset:
    """Samples that are their own number, counted from ``start``."""
    return TensorDataset(torch.arange(start, start + len(labels)), torch.tensor(labels))


def counts_of(labels: torch.Tensor) -> dict[int, int]:
    return dict(collections.Counter(labels.tolist()))


class Images(Dataset[Any]):
    """Labels beside images that must not be decoded."""

    def __init__(self, n: int, **attributes: Any) -> None:
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("an image was decoded")


class Stream(IterableDataset[Any]):
    """An iterable dataset that knows its length, and so is told apart by its class alone."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a stream was read")
