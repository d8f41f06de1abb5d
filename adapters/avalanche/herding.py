"""HerdedBuffer: a storage policy that keeps the exemplars nearest to the mean of their class."""

from __future__ import annotations

from typing import Any

from avalanche.benchmarks.utils.utils import concat_datasets
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import Tensor

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import herd


class HerdedBuffer(ExemplarsBuffer):  # type: ignore[misc]
    """Exemplars by iCaRL's herding: so many of each class, or so many in total.

    `groups` has those of each class id, best first; with a total, the last ones of every class go
    when classes arrive. A class with fewer samples than asked for gives all it has.
    """

    def __init__(self, per_class: int | None, total: int | None) -> None:
        if per_class is not None and total is not None:
            raise ConfigurationError(
                f"mem_size_per_class={per_class} and mem_size={total}: give one of them, exemplars "
                f"of each class or exemplars in total."
            )
        per_class = 20 if per_class is None and total is None else per_class
        for name, value in (("mem_size_per_class", per_class), ("mem_size", total)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{name}={value!r}: expected a number of at least 1.")
        super().__init__(total or 0)
        self.per_class = per_class
        self.groups: dict[int, Any] = {}

    @property
    def buffer(self) -> Any:
        """All exemplars, as one of Avalanche's data sets."""
        return concat_datasets(list(self.groups.values()))

    def of_each(self, classes: int) -> int:
        """How many exemplars a class may have when there are so many classes."""
        if self.per_class is not None:
            return self.per_class
        if self.max_size < classes:
            raise ConfigurationError(
                f"mem_size={self.max_size} has no exemplar for each of {classes} classes; give at "
                f"least {classes}, or mem_size_per_class."
            )
        return int(self.max_size // classes)

    def add(self, data: Any, features: Tensor, labels: Tensor) -> None:
        """Herd exemplars of new classes from `data`, of which these are features and class ids."""
        new = sorted(set(labels.tolist()))
        count = self.of_each(len(self.groups) + len(new))
        self._shorten(count)
        for label in new:
            rows = (labels == label).nonzero().flatten()
            best = herd(features[rows], min(count, len(rows)))
            self.groups[label] = data.subset(rows[best].tolist())
        if self.per_class is not None:
            self.max_size = self.per_class * len(self.groups)

    def resize(self, strategy: Any, new_size: int) -> None:
        """Keep `new_size` exemplars in total from now on."""
        self.max_size, self.per_class = new_size, None
        if self.groups:
            self._shorten(self.of_each(len(self.groups)))

    def _shorten(self, count: int) -> None:
        for label, group in self.groups.items():
            if len(group) > count:
                self.groups[label] = group.subset(list(range(count)))
