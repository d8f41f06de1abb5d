"""The phases of a Continuum scenario as a run sees them, checked before anything is trained."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from aanets_plugin.baselines.prediction import flips_horizontally
from aanets_plugin.errors import ConfigurationError

from .memory import with_samples


class Phases:
    """Train and test sets by phase. `increments[p]` is how many classes phase p brings."""

    def __init__(self, train: Any, test: Any) -> None:
        if len(train) != len(test):
            raise ConfigurationError(
                f"the train scenario has {len(train)} phases, the test scenario {len(test)}; make "
                f"both with the same increments and class order."
            )
        # Labels are places in the order, so two orders have the same ones for other classes.
        orders: list[Any] = [getattr(scenario, "class_order", None) for scenario in (train, test)]
        if not np.array_equal(*orders):
            first, second = ([] if order is None else list(map(int, order)) for order in orders)
            raise ConfigurationError(
                f"the train scenario has the class order {first}, the test scenario {second}; give "
                f"both the same class order."
            )
        self.scenarios = train, test
        self.increments: list[int] = []
        self.smallest: list[int] = []
        self.samples: list[int] = []
        for phase in range(len(train)):
            labels = [np.asarray(scenario[phase]._y) for scenario in (train, test)]
            self._check(phase, *(np.unique(y) for y in labels))
            counts = np.unique(labels[0], return_counts=True)[1]
            self.increments.append(len(counts))
            self.smallest.append(int(counts.min()))
            self.samples.append(len(labels[0]))
        self.input_shape: tuple[int, ...] = tuple(test[0][0][0].shape)
        if not self.input_shape:
            raise ConfigurationError("the samples of the test scenario are not image tensors.")

    @property
    def digest(self) -> str:
        """A short name for the samples of both scenarios; of picture files, that of their names."""
        found = hashlib.blake2b(digest_size=8)
        for scenario in self.scenarios:
            x, y, _ = scenario[:].get_raw_samples()
            if x.dtype.kind in "UO":
                found.update("\n".join("/".join(Path(p).parts[-2:]) for p in x).encode())
            else:
                found.update(x.tobytes())
            found.update(y.astype(np.int64).tobytes())
        return found.hexdigest()

    def _check(self, phase: int, classes: np.ndarray, test_classes: np.ndarray) -> None:
        expected = np.arange(sum(self.increments), sum(self.increments) + len(classes))
        if not len(classes) or not np.array_equal(classes, expected):
            raise ConfigurationError(
                f"phase {phase} has the classes {classes.tolist()}; expected new classes, numbered "
                f"in the order of their arrival, as a ClassIncremental scenario makes them."
            )
        if not np.array_equal(classes, test_classes):
            raise ConfigurationError(
                f"phase {phase} trains the classes {classes.tolist()} and tests "
                f"{test_classes.tolist()}; give both scenarios the same class order."
            )

    def __len__(self) -> int:
        return len(self.increments)

    @property
    def classes(self) -> int:
        return sum(self.increments)

    def seen(self, phase: int) -> int:
        """Classes seen at the end of a phase; none at the end of phase -1."""
        return sum(self.increments[: phase + 1])

    def train(self, phase: int) -> Any:
        """The new classes' samples, with the training transforms."""
        return copy.copy(self.scenarios[0][phase])

    def train_so_far(self, phase: int) -> Any:
        return copy.copy(self.scenarios[0][: phase + 1])

    def train_as_test(self, phase: int) -> Any:
        """The new classes' training samples, with the transforms of the test scenario."""
        return with_samples(self.scenarios[1][0], self.train(phase).get_raw_samples())

    def test_so_far(self, phase: int) -> Any:
        return self.scenarios[1][: phase + 1]

    @property
    def test_transforms(self) -> Any:
        return self.scenarios[1][0].trsf

    @property
    def flips(self) -> bool:
        """Whether training mirrors images, so that nearest means use mirrored exemplars too."""
        return flips_horizontally(self.scenarios[0][0].trsf)
