"""Phases: the data of each phase of a Continuum scenario, checked before any training."""

import copy
import hashlib
import os
from typing import Any

import numpy as np

from aanets_plugin.baselines.prediction import flips_horizontally
from aanets_plugin.errors import ConfigurationError

from .memory import with_samples


class Phases:
    """Training and test data by phase.

    Attributes:
        increments: the number of new classes of each phase.
        samples: the number of training samples of each phase.
        smallest: the number of training samples of the smallest class of each phase.
        input_shape: the shape of an image after the test transforms.
    """

    def __init__(self, train: Any, test: Any) -> None:
        if len(train) != len(test):
            raise ConfigurationError(
                f"the train scenario has {len(train)} phases, the test scenario {len(test)}: must "
                f"be equally many. Use the same increments and class order for both."
            )
        # Labels are positions in the class order: with another order they mean other classes.
        orders: list[Any] = [getattr(scenario, "class_order", None) for scenario in (train, test)]
        if not np.array_equal(*orders):
            first, second = ([] if order is None else list(map(int, order)) for order in orders)
            raise ConfigurationError(
                f"the train scenario has the class order {first}, the test scenario {second}: must "
                f"be the same. Use the same class order for both."
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
            raise ConfigurationError(
                "the samples of the test scenario must be image tensors. Add ToTensor to its "
                "transforms."
            )

    @property
    def digest(self) -> str:
        """A hash of the samples of both scenarios; of the file names, if they are image files."""
        digest = hashlib.blake2b(digest_size=8)
        for scenario in self.scenarios:
            x, y, _ = scenario[:].get_raw_samples()
            if x.dtype.kind in "UO":
                names = ("/".join(path.rsplit(os.sep, 2)[-2:]) for path in x.tolist())
                digest.update("\n".join(names).encode())
            else:
                digest.update(x.tobytes())
            digest.update(y.astype(np.int64).tobytes())
        return digest.hexdigest()

    def _check(self, phase: int, classes: np.ndarray, test_classes: np.ndarray) -> None:
        expected = np.arange(sum(self.increments), sum(self.increments) + len(classes))
        if not len(classes) or not np.array_equal(classes, expected):
            raise ConfigurationError(
                f"phase {phase} has the classes {classes.tolist()}: must be new classes, numbered "
                f"in the order in which they are learned. Use a ClassIncremental scenario."
            )
        if not np.array_equal(classes, test_classes):
            raise ConfigurationError(
                f"phase {phase} trains the classes {classes.tolist()} and tests "
                f"{test_classes.tolist()}: must be the same. Use the same increments and class "
                f"order for both."
            )

    def __len__(self) -> int:
        return len(self.increments)

    @property
    def classes(self) -> int:
        """The number of classes of all phases."""
        return sum(self.increments)

    def seen(self, phase: int) -> int:
        """The number of classes seen at the end of a phase; 0 for phase -1."""
        return sum(self.increments[: phase + 1])

    def train(self, phase: int) -> Any:
        """The training samples of the new classes, with the training transforms."""
        return copy.copy(self.scenarios[0][phase])

    def train_so_far(self, phase: int) -> Any:
        """The training samples of all classes seen, with the training transforms."""
        return copy.copy(self.scenarios[0][: phase + 1])

    def train_as_test(self, phase: int) -> Any:
        """The training samples of the new classes, with the test transforms."""
        return with_samples(self.scenarios[1][0], self.train(phase).get_raw_samples())

    def test_so_far(self, phase: int) -> Any:
        """The test samples of all classes seen."""
        return self.scenarios[1][: phase + 1]

    @property
    def test_transforms(self) -> Any:
        """The transforms of the test data."""
        return self.scenarios[1][0].trsf

    @property
    def flips(self) -> bool:
        """Whether training mirrors images, so that nearest means use mirrored exemplars too."""
        return flips_horizontally(self.scenarios[0][0].trsf)
