"""Plan: a run as data, so that another process or machine can do it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable
from functools import partial
from pathlib import Path

from aanets_plugin.experiments.datasets import Data, load_data, scenarios
from aanets_plugin.experiments.queue import Job
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.runner import Run
from aanets_plugin.experiments.splits import PAPER_SEED, paper_order
from aanets_plugin.experiments.trainer import default_accelerator
from aanets_plugin.experiments.variants import RunSettings


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the images come from."""

    dataset: str
    folder: Path | None = None
    images_per_class: int | None = None
    image_size: int | None = None
    color_jitter: bool = False

    def load(self) -> Data:
        """The data, read once in a process."""
        return _load(self)


@functools.lru_cache(maxsize=2)
def _load(source: Source) -> Data:
    return load_data(
        source.dataset,
        source.folder,
        per_class=source.images_per_class,
        image_size=source.image_size,
        color_jitter=source.color_jitter,
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run."""

    name: str
    source: Source
    settings: RunSettings
    increments: tuple[int, ...]
    seed: int
    precision: str = "no"
    device: str = "auto"
    order: int = PAPER_SEED
    """The seed that shuffles the classes. Default: the paper's."""
    kind: type[Run] = Run
    """The class of the run."""

    @property
    def first_phase(self) -> Hashable:
        """Plans for which this is equal train the same network in the first phase."""
        method, training = self.settings.method, self.settings.training
        return (
            self.source,
            self.seed,
            self.order,
            self.increments[0],
            repr(self.settings.backbone),
            method.head_type,
            method.settings().get("proxies"),
            training.epochs_of(0),
            training.lr_of(0),
            training.schedule or method.schedule,
            dataclasses.replace(training, epochs=1, base_epochs=1, lr=1.0, base_lr=1.0),
        )

    def prepare(self, output: Path, base: Path | None = None) -> Run:
        """The run in the folder `output`, as far as it got.

        Its first phase is that of the run in the folder `base`, if given.
        """
        data, own = self.source.load(), self.settings
        order = paper_order(data.classes, self.order)
        train, test = scenarios(data, increments=self.increments, order=order)
        return self.kind(
            train,
            test,
            own.backbone,
            own.method,
            aanets=own.aanets,
            memory=own.memory,
            training=own.training,
            seed=self.seed,
            output=output,
            resume=True,
            base=base,
            accelerator=default_accelerator(
                cpu=self.device == "cpu", mixed_precision=self.precision
            ),
            progress=False,
            report=False,
        )

    def job(self, folder: Path) -> Job:
        """The run as a job whose folder is in `folder`."""
        own = folder / self.name
        return Job(
            self.name,
            own,
            partial(do, self, own),
            len(self.increments),
            self.first_phase,
            rule=self.settings.method.predicts_by,
        )


def do(plan: Plan, folder: Path, base: Path | None) -> None:
    """Do the run, or what is left of it. Another process that does the same run waits for it."""
    with RunFolder(folder).lock(wait=True):
        plan.prepare(folder, base).finish()
