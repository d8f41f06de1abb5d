"""BalancedSamples: the class-balanced data that α learns on in the phases of a host."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from aanets_plugin.checks import positive
from aanets_plugin.config import EXEMPLARS_PER_CLASS
from aanets_plugin.exemplars import balanced_indices, balanced_subset, targets_of

logger = logging.getLogger("aanets_plugin")

MIN_PER_CLASS = 5
"""If a class has fewer samples than this, its samples are used more than once."""


class BalancedSamples:
    """Draws the same number of samples of every class from the data and the memory of a host.

    If the host has no sample of an old class, some samples of the phase in which it was new are
    kept for α alone. The random state of the host does not change.

    Args:
        host: Name of the host's class, for messages.
        per_class: Samples of each class. Default: as many as the smallest class has.
        balanced: False: all samples of the data and the memory.
        batch_size: Batch size of the loader.
    """

    def __init__(
        self, host: str, per_class: int | None, batch_size: int, *, balanced: bool = True
    ) -> None:
        self.host = host
        self.per_class = per_class
        self.balanced = balanced
        self.batch_size = positive(batch_size, "batch_size")
        self.seen: set[int] = set()
        self._seed = torch.initial_seed()
        self._data: Any = None
        self._memory: Any = None
        self._kept: list[Any] = []
        self._loader: DataLoader[Any] | None = None

    def begin_phase(self, data: Any, memory: Any) -> None:
        """Take the training data of a phase, and the memory as it is when the phase begins."""
        last, self._data, self._memory = self._data, data, memory
        self._loader = None
        for lost in _other_classes(last, self._parts()):
            labels = targets_of(lost)
            smallest = int(torch.unique(labels, return_counts=True)[1].min())
            count = min(self.per_class or EXEMPLARS_PER_CLASS, smallest)
            kept = balanced_indices(labels, count, self._generator())
            self._kept.append(Subset(lost, kept.tolist()))

    def end_phase(self) -> None:
        """Remember the classes of the phase. Its data are kept until the next phase begins."""
        self.seen.update(targets_of(self._data).tolist())
        self._memory = self._loader = None

    def loader(self) -> DataLoader[Any]:
        """Return batches with the same number of samples of every class, drawn once per phase."""
        if self._loader is None:
            subset = self._draw() if self.balanced else self._all()
            self._report(targets_of(subset).tolist())
            self._loader = DataLoader(subset, batch_size=self.batch_size)
        return self._loader

    def _draw(self) -> Any:
        data, *old = self._parts()
        return balanced_subset(
            data,
            ConcatDataset(old) if old else None,
            per_class=self.per_class,
            generator=self._generator(),
            min_per_class=MIN_PER_CLASS,
        )

    def _all(self) -> Any:
        """Return all samples, in random order."""
        joined: Any = ConcatDataset(self._parts())
        return Subset(joined, torch.randperm(len(joined), generator=self._generator()).tolist())

    def _parts(self) -> list[Any]:
        """Return the training data, then samples of the classes that are not in it."""
        parts = [self._data]
        for source in (self._memory, *self._kept):
            parts += _other_classes(source, parts)
        return parts

    def _generator(self) -> torch.Generator:
        # The number of old classes differs from phase to phase, and a checkpoint has it.
        return torch.Generator().manual_seed((self._seed + len(self.seen)) % 2**63)

    def _report(self, labels: list[int]) -> None:
        classes = set(labels)
        each = f" of each of {len(classes)} classes" if self.balanced else ", imbalanced"
        count = len(labels) // (len(classes) if self.balanced else 1)
        logger.info(f"α learns on {count} samples{each}.")
        if missing := self.seen - classes:
            logger.warning(
                f"{len(missing)} of {len(self.seen)} old classes have no sample in the memory of "
                f"{self.host}, so α learns without them."
            )


def _other_classes(source: Any, parts: list[Any]) -> list[Any]:
    """Return the samples of `source` whose classes are not in `parts`; empty if there are none."""
    if source is None:
        return []
    present = {label for part in parts for label in targets_of(part).tolist()}
    indices = [i for i, label in enumerate(targets_of(source).tolist()) if label not in present]
    return [Subset(source, indices)] if indices else []
