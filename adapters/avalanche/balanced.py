"""BalancedData: the class-balanced samples that α learns from (Eq. 8)."""

import logging
from typing import Any

import torch
from avalanche.training.storage_policy import ExemplarsBuffer
from torch.utils.data import ConcatDataset, DataLoader, Subset

from aanets_plugin.checks import positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import balanced_indices

from .memory import Key, Samples, fill, find_memory, keys_of, owners_of

logger = logging.getLogger("aanets_plugin")


class BalancedData:
    """The same number of samples of each class: old classes from a memory, new ones from the data.

    The memory is the first of these that exists:

    1. the storage policy passed here;
    2. the strategy's training data, if they include old classes (ICaRL, GDumb, Cumulative);
    3. the memory of the strategy or of one of its plugins (Replay, BiC, MIR, DER, ER_ACE, AGEM, GEM
       and others);
    4. exemplars that are stored here and used for α alone.

    Samples are drawn once per phase with a separate seed, so that the strategy's random numbers do
    not change and a resumed run draws the same samples.
    """

    def __init__(
        self,
        storage_policy: ExemplarsBuffer | None,
        per_class: int,
        batch_size: int | None,
        balanced: bool = True,
    ) -> None:
        if storage_policy is not None and not isinstance(storage_policy, ExemplarsBuffer):
            raise ConfigurationError(
                f"storage_policy={storage_policy!r:.80}: must be an Avalanche storage policy, such "
                f"as ClassBalancedBuffer(max_size=2000)."
            )
        self.storage_policy = storage_policy
        self.per_class = positive(per_class, "per_class")
        self.balanced = balanced
        self.batch_size = None if batch_size is None else positive(batch_size, "batch_size")
        self.seed = torch.initial_seed()
        self.seen: set[Key] = set()
        self.kept: list[Any] = []
        self._loader: DataLoader[Any] | None = None
        self._phase = -1
        self._logged = False

    def loader(self, strategy: Any, phase: int, num_workers: int = 0) -> DataLoader[Any]:
        """Return the balanced batches (x, y, task label) of this phase."""
        if self._loader is None or self._phase != phase:
            self._phase = phase
            source, parts = self._parts(strategy)
            joined = [key for part in parts for key in part.keys]
            chosen, per_class, keys = self._draw(joined, phase)
            if not self.balanced:
                chosen = self._shuffled(len(joined), phase)
            self._loader = DataLoader(
                Subset(ConcatDataset(parts), chosen),
                batch_size=self.batch_size or strategy.train_mb_size,
                num_workers=num_workers,
            )
            if self.balanced:
                self._log(source, per_class, keys)
        return self._loader

    def experience_ended(self, strategy: Any) -> None:
        """Record the classes of the experience, and store samples if nothing else does."""
        self._loader = None
        data = experience_data(strategy)
        keys = keys_of(data)
        self.seen.update(keys)
        if self.storage_policy is not None:
            if not owners_of(self.storage_policy, strategy):
                fill(self.storage_policy, strategy)
        elif find_memory(strategy) is None:
            chosen, _, _ = self._draw(keys, strategy.clock.train_exp_counter)
            self.kept.append(data.subset(chosen))

    def _parts(self, strategy: Any) -> tuple[str, list[Samples]]:
        """Return a description of the memory, and all samples to draw from."""
        experience = Samples(experience_data(strategy))
        if self.storage_policy is not None:
            return "the storage policy given to AANetPlugin", [
                experience,
                *self._old([Samples(self.storage_policy.buffer)]),
            ]
        training = Samples(strategy.adapted_dataset)
        if not set(training.keys) <= set(experience.keys):
            return f"the data that {type(strategy).__name__} trains on", [training]
        memory = find_memory(strategy)
        if memory is not None:
            source, exemplars = memory
            return source, [experience, *self._old(exemplars)]
        kept = [Samples(data) for data in self.kept]
        return "exemplars kept for α alone", [experience, *self._old(kept)]

    def _old(self, parts: list[Samples]) -> list[Samples]:
        """Return the samples of old classes; some memories already contain new ones."""
        chosen = []
        for part in parts:
            indices = [i for i, key in enumerate(part.keys) if key in self.seen]
            keys = [part.keys[i] for i in indices]
            if indices:
                chosen.append(Samples(Subset(part, indices), keys))
        return chosen

    def _draw(self, keys: list[Key], phase: int) -> tuple[list[int], int, set[Key]]:
        """Return the indices of a balanced draw, their number per class, and the classes."""
        classes = {key: number for number, key in enumerate(sorted(set(keys)))}
        labels = torch.tensor([classes[key] for key in keys], dtype=torch.int64)
        per_class = min([self.per_class, *labels.bincount().tolist()])
        chosen = balanced_indices(labels, per_class, self._generator(phase))
        return chosen.tolist(), per_class, set(classes)

    def _shuffled(self, count: int, phase: int) -> list[int]:
        return torch.randperm(count, generator=self._generator(phase)).tolist()

    def _generator(self, phase: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed + phase) % 2**63)

    def _log(self, source: str, per_class: int, keys: set[Key]) -> None:
        if not self._logged:
            self._logged = True
            old = f"the old ones from {source}, " if self.seen else ""
            logger.info(
                f"α learns on {per_class} samples of each of {len(keys)} classes: {old}the new "
                f"ones from the current experience."
            )
        if missing := self.seen - keys:
            logger.warning(
                f"{len(missing)} of {len(self.seen)} old classes have no sample in {source}, so α "
                f"learns without them. A ClassBalancedBuffer stores samples of every class."
            )


def experience_data(strategy: Any) -> Any:
    """Return the data of the current experience; in an online stream, of the whole experience."""
    experience = strategy.experience
    return getattr(experience, "origin_experience", experience).dataset
