"""The data of the upper level: the batches of a balanced loader, and the classes in it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from aanets_plugin.attach import LoaderSource
from aanets_plugin.default_loss import classes_of, cross_entropy
from aanets_plugin.errors import ConfigurationError


class BalancedData:
    """Reads the balanced loaders of all phases, and remembers their classes."""

    def __init__(self) -> None:
        self.classes: Tensor | None = None  # of the last loader; None if unknown
        self._by_phase: dict[int, set[int]] = {}

    def batches(self, source: LoaderSource | None, phase: int, limit: int | None) -> Iterator[Any]:
        """Yield the batches of a loader, at most `limit`."""
        # A generator, because iter(DataLoader) draws from torch's random numbers, and because all
        # ranks are told of an error in the update.
        if source is None:
            raise ConfigurationError(
                f"after_epoch() in phase {phase} needs a balanced loader. Pass one over "
                f"balanced_subset(new_data, exemplars)."
            )
        loader = source() if callable(source) else source
        if not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
            raise ConfigurationError(
                f"The balanced loader is a {type(loader).__name__}: must be a loader, a list of "
                f"batches, or a function that returns one."
            )
        self.remember_classes(loader, phase)
        yield from itertools.islice(loader, limit)

    def remember_classes(self, loader: Any, phase: int) -> None:
        """Read the classes of the balanced data; warn if there is no old class among them."""
        self.classes = classes_of(loader)
        if self.classes is None:
            return
        now = set(self.classes.tolist())
        old: set[int] = set().union(*(v for p, v in self._by_phase.items() if p < phase))
        if old and not old & now and phase not in self._by_phase:
            warnings.warn(
                f"The balanced data of phase {phase} have no class of an earlier phase, so α "
                f"learns on new classes only. Pass balanced_subset(new_data, exemplars) with "
                f"samples of the old classes.",
                stacklevel=2,
            )
        self._by_phase[phase] = now

    def cross_entropy(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the default loss of a batch, over the classes of the last loader."""
        return cross_entropy(model, batch, self.classes)
