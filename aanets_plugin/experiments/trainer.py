"""Passes over data with Accelerate: training, features, the batches of α."""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, DynamoBackend, TorchDynamoPlugin
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from aanets_plugin.baselines.lifecycle import Features, features_of, sgd, teacher_of, train_epoch
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.errors import NonFiniteLossError
from aanets_plugin.experiments.randomness import generator, seed_everything
from aanets_plugin.experiments.settings import Training
from aanets_plugin.fold import fold
from aanets_plugin.ranks import failing_together


def default_accelerator(*, compiles: bool = False, **options: Any) -> Accelerator:
    """Return an Accelerator that splits each batch among the processes.

    `compiles` compiles the training step with `torch.compile`, with a folded teacher, and folds the
    network for features. The others are its own options.
    """
    # A phase has two batch sizes, the last one being smaller: each gets its own code.
    compiled = {"backend": "inductor", "dynamic": False} if compiles else {}
    plugin = options.pop("dynamo_plugin", None) or TorchDynamoPlugin(**compiled)
    loading = DataLoaderConfiguration(split_batches=True)
    accelerator = Accelerator(dataloader_config=loading, **options)
    # All accelerators of a process share one state, which the first of them has made.
    accelerator.state.dynamo_plugin = plugin
    return accelerator


class Trainer:
    """Trains and computes features with Accelerate."""

    def __init__(
        self, accelerator: Accelerator, training: Training, seed: int, progress: bool
    ) -> None:
        self.accelerator = accelerator
        self.training = training
        self.seed = seed
        self.show = progress and accelerator.is_main_process

    @property
    def compiles(self) -> bool:
        """Whether the training step is compiled."""
        return bool(self.accelerator.state.dynamo_plugin.backend != DynamoBackend.NO)

    def frozen_copy(self, net: IncrementalNet) -> IncrementalNet:
        """Return a copy of the network that only predicts; see `teacher_of`.

        It is folded if the step is compiled. Like the compiled step itself, that changes the
        results by rounding, so that the default is left as it is.
        """
        return fold(net) if self.compiles else teacher_of(net)

    def prepare(self, loss: nn.Module) -> tuple[Any, Any]:
        """Return the loss module and SGD on its parameters, ready to train."""
        self.accelerator.free_memory()
        if self.compiles:
            # Code that was compiled often, for other phases, would not be compiled again.
            torch.compiler.reset()
        optimizer = sgd(loss, self.training.momentum, self.training.weight_decay)
        return self.accelerator.prepare(loss, optimizer)  # type: ignore[no-any-return]

    def train(self, loss: Any, optimizer: Any, lr: float, data: Any, *position: int) -> float:
        """Train one epoch and return the mean loss. `position` (phase, …, epoch) seeds it.

        A last batch of a single sample is left out.
        """
        seed_everything(self.seed, *position, 1, self.accelerator.process_index)
        draw = generator(self.seed, *position)
        # One sample alone has no statistics: it spoils those of BatchNorm, and the training.
        leaves_one = len(data) % self.training.batch_size == 1 < len(data)
        loader = self.loader(data, shuffle=True, drop_last=leaves_one, generator=draw)
        batches = self._read(self.bar(loader, "batches", "batch"))
        loss.train()

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            with self.together():
                value: Tensor = loss(x, y)
            return value

        losses = train_epoch(loss_of, optimizer, lr, batches, self.accelerator.backward)
        if self.accelerator.num_processes > 1:
            # DDP copies the buffers of the first process to the others before each forward only.
            for buffer in loss.buffers():
                torch.distributed.broadcast(buffer, 0)
        mean = float(sum(losses)) / len(losses)
        with self.together():
            if not math.isfinite(mean):
                raise NonFiniteLossError(
                    f"the training loss is {mean} in phase {position[0]}, epoch {position[-1]}. "
                    f"Lower the learning rate, now {lr:g}. The state before this epoch is saved."
                )
        return mean

    def features(self, net: IncrementalNet, data: Any, flip: bool = False) -> Features:
        """Compute the features of all samples in order, with all processes; see `features_of`."""
        if self.compiles:
            net = self.frozen_copy(net)
        batches = self._read(self.bar(self.loader(data), "features", "batch"))
        with self.accelerator.autocast():
            gather = self.accelerator.gather_for_metrics
            return features_of(net, batches, flip=flip, gather=gather)

    def together(self) -> AbstractContextManager[None]:
        """If the block fails on one process, all fail. Nobody passes its end before the others."""
        return failing_together(self.accelerator.device)

    def _read(self, batches: Iterable[Any]) -> Iterator[Any]:
        rest = iter(batches)
        while True:
            with self.together():
                batch = next(rest, None)
            if batch is None:
                return
            yield batch

    def loader(self, data: Any, **options: Any) -> Any:
        """Return a loader whose batches are on the device; `batch_size` counts all processes."""
        size, workers = self.training.batch_size, self.training.workers
        loader = DataLoader(data, batch_size=size, num_workers=workers, **options)
        return self.accelerator.prepare_data_loader(loader)

    def share(self, balanced: DataLoader[Any]) -> DataLoader[Any]:
        """Return this process's part of the balanced loader of α.

        Accelerate would repeat samples to fill the last batch, and α's gradient would count them
        twice.
        """
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        if world == 1:
            return balanced
        subset: Any = balanced.dataset
        own = Subset(subset.dataset, subset.indices[rank::world])
        size = max(1, self.training.batch_size // world)
        return DataLoader(own, batch_size=size, num_workers=self.training.workers)

    def bar(self, items: Any, name: str, unit: str, *, done: int = 0, leave: bool = False) -> Any:
        """Return `items` with a progress bar that starts at `done`."""
        shown: Any = {"initial": done, "total": done + len(items), "disable": not self.show}
        return tqdm(items, desc=name, unit=unit, leave=leave, **shown)


def check_momentum(optimizer: Any) -> None:
    """Check that a state that was loaded has the shapes of the parameters; torch does not look."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape != parameter.shape:
                raise ValueError(f"{name} has the shape {tuple(value.shape)}")
