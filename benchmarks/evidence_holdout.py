"""A run whose α learns on exemplars that the network does not train on."""

from __future__ import annotations

from typing import Any

import numpy as np

from aanets_plugin.adapters.continuum.memory import with_samples
from aanets_plugin.experiments.runner import Run

SHARE = 0.1
"""The part of the exemplars that is held out, of each class."""


class HoldoutRun(Run):
    """A run that holds out a share of the exemplars of each class from the network, for α.

    Of an old class these are the last ones in the order of herding, the same in all phases after
    the one in which the class came; in that one the network may have trained on them. Of a new
    class they are as many images, drawn at random, and the network has not seen them.
    """

    def training_data(self, phase: int) -> Any:
        """The samples of the phase without those that are held out for α."""
        data = super().training_data(phase)
        if phase == 0:
            return data
        old = self.phases.seen(phase - 1)
        count = max(1, round(SHARE * len(self.state.exemplars) / old))
        held = held_out(data._y, old, count, np.random.default_rng([self.seed, phase]))
        x, y, t = data.get_raw_samples()
        self.held = with_samples(data, (x[held], y[held], t[held]))
        return with_samples(data, (x[~held], y[~held], t[~held]))

    def update_alpha(self, data: Any, phase: int, epoch: int) -> None:
        """Update α on what is held out."""
        super().update_alpha(self.held if phase else data, phase, epoch)


def held_out(labels: np.ndarray, old: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Which samples are held out: the last `count` of each old class, any `count` of a new one."""
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        held[own[-count:] if label < old else random.permutation(own)[:count]] = True
    return held
