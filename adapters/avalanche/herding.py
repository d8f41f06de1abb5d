"""HerdedBuffer: an Avalanche storage policy that selects exemplars by herding."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset
from avalanche.benchmarks.utils.utils import concat_datasets
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import Tensor

from aanets_plugin.checks import positive
from aanets_plugin.config import EXEMPLARS_PER_CLASS
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.herding import herd_classes


class HerdedBuffer(ExemplarsBuffer):  # type: ignore[misc]
    """Exemplars selected by iCaRL's herding, a fixed number per class or in total.

    `groups` has the exemplars of each class id, best first. With a fixed total, each class gives up
    its last exemplars when new classes arrive. A class with fewer samples stores all of them. The
    default is 20 per class.
    """

    def __init__(self, per_class: int | None, total: int | None) -> None:
        if per_class is not None and total is not None:
            raise ConfigurationError(
                f"mem_size_per_class={per_class} and mem_size={total}: give one of them, the "
                f"number of exemplars per class or in total."
            )
        if per_class is None and total is None:
            per_class = EXEMPLARS_PER_CLASS
        if per_class is not None:
            per_class = positive(per_class, "mem_size_per_class")
        super().__init__(0 if total is None else positive(total, "mem_size"))
        self.per_class = per_class
        self.groups: dict[int, Any] = {}

    @property
    def buffer(self) -> Any:
        """All exemplars as one Avalanche dataset."""
        return concat_datasets(list(self.groups.values()))

    def of_each(self, classes: int) -> int:
        """Return the number of exemplars per class for this number of classes."""
        if self.per_class is not None:
            return self.per_class
        if self.max_size < classes:
            raise ConfigurationError(
                f"mem_size={self.max_size} has no exemplar for each of {classes} classes: must be "
                f"≥ {classes}. Or pass mem_size_per_class."
            )
        return int(self.max_size // classes)

    def post_adapt(self, agent: Any, exp: Any) -> None:
        """Herd exemplars of the new classes of `exp`.

        `agent` is an IncrementalStrategy, whose network computes the features.
        """
        features, labels, _ = agent.features(exp.dataset)
        count = self.of_each(len({*self.groups, *labels.tolist()}))
        self._shorten(count)
        for label, rows in herd_classes(features, labels, count, at_most=True).items():
            self.groups[label] = exp.dataset.subset(rows.tolist())
        if self.per_class is not None:
            self.max_size = self.per_class * len(self.groups)

    def update(self, strategy: Any, **kwargs: Any) -> None:
        """`post_adapt` under the name of Avalanche before 0.6."""
        self.post_adapt(strategy, strategy.experience)

    def refine(
        self,
        new: Iterable[int],
        learn: Callable[[Tensor, Tensor, tuple[Tensor, Tensor]], Tensor],
        transform: Callable[[Tensor], Tensor] | None,
    ) -> None:
        """Replace the exemplars of the classes `new` by learned images, inputs of the network.

        `learn(images, labels, bounds)` returns them, with pixels between the bounds, the range of
        the herded images by channel. `transform` is applied to them in training.
        """
        herded = concat_datasets([self.groups[label] for label in sorted(new)]).eval()
        samples = [
            (torch.as_tensor(x), int(y), int(t[0]) if t else 0) for x, y, *t in herded.eval()
        ]
        images = torch.stack([x for x, _, _ in samples])
        labels = torch.tensor([y for _, y, _ in samples])
        low, high = images.amin((0, 2, 3), keepdim=True)[0], images.amax((0, 2, 3), keepdim=True)[0]
        learned = _make_taskaware_tensor_classification_dataset(
            learn(images, labels, (low, high)),
            labels,
            task_labels=[task for _, _, task in samples],
            transform_groups={"train": (transform, None), "eval": (None, None)},
        )
        for label in new:
            self.groups[label] = learned.subset((labels == label).nonzero().flatten().tolist())

    def resize(self, strategy: Any, new_size: int) -> None:
        """Store `new_size` exemplars in total from now on."""
        self.max_size, self.per_class = new_size, None
        if self.groups:
            self._shorten(self.of_each(len(self.groups)))

    def _shorten(self, count: int) -> None:
        for label, group in self.groups.items():
            if len(group) > count:
                self.groups[label] = group.subset(list(range(count)))
