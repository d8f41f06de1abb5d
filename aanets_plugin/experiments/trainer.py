"""The loops over data that a run is made of, on Accelerate: training, α's batches, features."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.errors import ConfigurationError, NonFiniteLossError
from aanets_plugin.experiments.randomness import generator, seed_everything
from aanets_plugin.experiments.settings import Training
from aanets_plugin.modes import evaluating
from aanets_plugin.optim import parameter_groups


def default_accelerator(**options: Any) -> Accelerator:
    """Accelerate with each batch shared by the processes, whatever their number."""
    return Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True), **options)


class Loop:
    """Passes over data sets; the random numbers of a pass follow from `where` it is in the run."""

    def __init__(
        self, accelerator: Accelerator, training: Training, seed: int, progress: bool
    ) -> None:
        self.accelerator = accelerator
        self.training = training
        self.seed = seed
        self.show = progress and accelerator.is_main_process

    def prepare(self, lesson: nn.Module, learns: nn.Module, lr: float) -> tuple[Any, Any]:
        """`lesson`, a module that gives a loss, and SGD on what `learns`, ready to train."""
        self.accelerator.free_memory()
        groups = parameter_groups(learns, lr, self.training.weight_decay)
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=self.training.momentum)
        prepared: tuple[Any, Any] = self.accelerator.prepare(lesson, optimizer)
        return prepared

    def train(self, lesson: Any, optimizer: Any, lr: float, data: Any, *where: int) -> float:
        """One epoch; returns the mean loss."""
        for group in optimizer.param_groups:
            group["lr"] = lr
        seed_everything(self.seed, *where, 1, self.accelerator.process_index)
        loader = self.loader(data, shuffle=True, generator=generator(self.seed, *where))
        lesson.train()
        total = torch.zeros((), device=self.accelerator.device)
        for x, y, *_ in self.bar(loader, "batches", "batch"):
            optimizer.zero_grad()
            loss = lesson(x, y)
            self.accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        self._agree(lesson)
        mean = float(total) / len(loader)
        if not math.isfinite(mean):
            raise NonFiniteLossError(
                f"the training loss is {mean} in phase {where[0]}, epoch {where[-1]}; the learning "
                f"rate is {lr:g}, lower it. The state before this epoch is saved."
            )
        return mean

    def _agree(self, lesson: nn.Module) -> None:
        """The first process's statistics for all: DDP gives them out before a forward, and after
        the last one each process has its own."""
        if self.accelerator.num_processes > 1:
            for buffer in lesson.buffers():
                torch.distributed.broadcast(buffer, 0)

    @torch.no_grad()
    def features(
        self, net: IncrementalNet, data: Any, flip: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features and labels of all samples in their order, by all processes together; with
        `flip` also the features of the mirrored images."""
        straight, mirrored, labels = [], [], []
        with evaluating(net), self.accelerator.autocast():
            for x, y, *_ in self.bar(self.loader(data), "features", "batch"):
                parts = [net.features(x), y] + ([net.features(x.flip(-1))] if flip else [])
                found = self.accelerator.gather_for_metrics(parts)
                straight.append(found[0].float().cpu())
                labels.append(found[1].cpu())
                mirrored += [part.float().cpu() for part in found[2:]]
        flipped = torch.cat(mirrored) if flip else None
        return torch.cat(straight), torch.cat(labels).long(), flipped

    def loader(self, data: Any, **options: Any) -> Any:
        """A loader on the device, in batches of the training's size for all processes together."""
        if not isinstance(data, DataLoader):
            size, workers = self.training.batch_size, self.training.workers
            data = DataLoader(data, batch_size=size, num_workers=workers, **options)
        return self.accelerator.prepare_data_loader(data)

    def share(self, balanced: DataLoader[Any]) -> DataLoader[Any]:
        """This process's part of a loader of α, which weighs samples: none comes twice, as it
        would where the last batch is filled up for all processes."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        if world == 1:
            return balanced
        subset: Any = balanced.dataset
        own = Subset(subset.dataset, subset.indices[rank::world])
        size = max(1, self.training.batch_size // world)
        return DataLoader(own, batch_size=size, num_workers=self.training.workers)

    def bar(self, what: Any, name: str, unit: str, *, done: int = 0, leave: bool = False) -> Any:
        """`what` with a progress bar; `done` of it were done before."""
        return tqdm(
            what,
            desc=name,
            unit=unit,
            initial=done,
            total=done + len(what),
            leave=leave,
            disable=not self.show,
        )


class Curves:
    """TensorBoard's curves by epoch, if they are asked for and in the main process."""

    def __init__(self, folder: Path | None, training: Training) -> None:
        self.training = training
        self.writer: Any = None
        if folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ConfigurationError(
                    "tensorboard=True needs the package tensorboard: pip install tensorboard."
                ) from error
            self.writer = SummaryWriter(folder)

    def add(self, name: str, value: float, phase: int, epoch: int) -> None:
        """A point at this epoch of a phase."""
        if self.writer is not None:
            before = sum(self.training.epochs_of(p) for p in range(phase))
            self.writer.add_scalar(name, value, before + epoch)
            self.writer.flush()
