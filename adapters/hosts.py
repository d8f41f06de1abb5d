"""HostAdapter: what the adapters to PyCIL, mammoth and FACIL share, and yours can build on.

A host is a codebase with a training loop of its own. Its adapter says where a few things are in the
host: the network, the data of a task, the memory. `HostAdapter` does the rest: it converts
the backbone, makes each task a phase, updates α after every epoch of the main training on
class-balanced data, and keeps weight decay off φ. No file of the host is edited.

An adapter for a learner that has `net`, `loader`, `memory` and `train_task()`:

    class MyAdapter(HostAdapter):
        def network(self):
            return self.host.net

        def training_data(self):
            return self.host.loader.dataset

        def memory(self):
            return self.host.memory

        def steps_per_epoch(self):
            return len(self.host.loader)


    def with_aanets(learner, **options):
        adapter = MyAdapter(learner, **options)
        adapter.phase_around("train_task")
        return learner
"""

from __future__ import annotations

import functools
import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from aanets_plugin.alpha_gradient import LossFunction, cross_entropy, unwrapped
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import EXEMPLARS_PER_CLASS, AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.errors import PhaseError
from aanets_plugin.exemplars import balanced_indices, targets_of
from aanets_plugin.levels import levels

from .optimizer import PhiWithoutDecay, follow_parameters

logger = logging.getLogger("aanets_plugin")

FEWEST_PER_CLASS = 5
"""Where the smallest class has fewer samples than this, its samples are used more than once."""


class HostAdapter:
    """AANets in one learner of a host. The learner gets the attribute `bilevel`.

    A subclass defines `network` and `training_data`, and the other methods of the first group
    where the defaults do not fit. It then says when phases begin and end: with `phase_around`, or
    with `begin_phase` and `end_phase`, called by `before` and `after`.

    Args:
        host: the learner.
        loss_fn: `loss_fn(model, batch)` gives the loss of a balanced batch. Default: `self.loss`.
        base_phase: False for a network that is trained already.
        batch_size: of the passes over the balanced data. It changes speed and memory only.
        options: those of `AANetConfig`.
    """

    def __init__(
        self,
        host: Any,
        *,
        loss_fn: LossFunction | None = None,
        base_phase: bool = True,
        batch_size: int = 128,
        **options: Any,
    ) -> None:
        self.host = host
        self.config = AANetConfig(**options)
        self.batch_size = batch_size
        self.seed = torch.initial_seed()
        self.seen: set[int] = set()
        self._last_data: Any = None
        self._memory: Any = None
        self._kept: list[Any] = []
        self._loader: DataLoader[Any] | None = None
        self._no_decay: PhiWithoutDecay | None = None
        before = self._parameters()
        convert_to_aanet(self.backbone(), **self.config.conversion)
        self.bilevel = BilevelStrategy.from_config(
            self.network(), self.config, loss_fn=loss_fn or self.loss, base_phase=base_phase
        )
        self._levels = len(levels(self.bilevel.model))
        self._follow_parameters(before)
        host.bilevel = self.bilevel

    # -- where things are in the host ------------------------------------------------------------

    def network(self) -> nn.Module:
        """The whole network, with the head and without teachers: what `loss` calls."""
        raise NotImplementedError

    def backbone(self) -> nn.Module:
        """The module to convert, in the network or the network itself."""
        return unwrapped(self.network())

    def training_data(self) -> Any:
        """The dataset of the current phase. Exemplars may be in it."""
        raise NotImplementedError

    def memory(self) -> Any:
        """A dataset with samples of old classes, its items like those of the training data.

        Asked when a phase begins. New classes may be in it; they are left out. None: there is no
        memory. Old classes that neither dataset has come from samples of their own phase, which
        are kept for α alone.
        """
        return None

    def steps_per_epoch(self) -> int | None:
        """Optimizer steps of one epoch, asked at the first step of the phase.

        None: the adapter calls `after_epoch` itself.
        """
        return None

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of a balanced batch. Runs in evaluation mode."""
        return cross_entropy(model, batch)

    def optimizer(self) -> Optimizer | None:
        """An optimizer that the host keeps between phases; it is given the new parameters.

        Hosts that build one for each task need nothing here.
        """
        return None

    def parameters_changed(
        self, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]
    ) -> None:
        """For hosts that keep something of their own for each parameter."""

    # -- phases ------------------------------------------------------------------------------------

    def begin_phase(self) -> None:
        """Begin a phase. The data and the memory of the task must be in their place."""
        self._follow_network()
        self._loader = None
        self._memory = self.memory()
        self.bilevel.begin_phase()
        if not self.bilevel.in_base_phase:
            self._keep_samples()
        self._last_data = self.training_data()
        if type(self).steps_per_epoch is not HostAdapter.steps_per_epoch:
            self.bilevel.attach(self.balanced_loader, every=self._steps)
        self._no_decay = PhiWithoutDecay(self.bilevel.model)

    def after_epoch(self) -> None:
        """Update α: for hosts that tell when an epoch ends, so that no steps are counted."""
        self.bilevel.after_epoch(self.balanced_loader)

    def end_phase(self) -> None:
        """End the phase, right after the main training.

        Parameters appear at the end of phase 0. Code of the host that looks at parameters after
        the training, such as EWC's, should run later.
        """
        self._remove_hooks()
        if not self.bilevel.epoch and not self.bilevel.in_base_phase:
            warnings.warn(
                f"{type(self.host).__name__} did not train the backbone in phase "
                f"{self.bilevel.phase_index}, so that α did not learn. AANets changes nothing for "
                f"methods that keep the backbone fixed.",
                stacklevel=2,
            )
        self.seen.update(targets_of(self._last_data).tolist())
        self._memory = self._loader = None
        before = self._parameters()
        self.bilevel.end_phase()
        self._follow_parameters(before)

    def phase_around(self, name: str) -> None:
        """Make each call of the host's method `name` a phase."""
        method = getattr(self.host, name)

        @functools.wraps(method)
        def phase(*args: Any, **kwargs: Any) -> Any:
            self.begin_phase()
            try:
                result = method(*args, **kwargs)
            except BaseException:
                self._remove_hooks()
                self.bilevel.detach()
                raise
            self.end_phase()
            return result

        setattr(self.host, name, phase)

    def before(self, name: str, action: Callable[..., object]) -> None:
        """Run `action`, with the arguments of the call, before the host's method `name`."""
        method = getattr(self.host, name)

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            action(*args, **kwargs)
            return method(*args, **kwargs)

        setattr(self.host, name, wrapped)

    def after(self, name: str, action: Callable[..., object]) -> None:
        """Run `action`, with the arguments of the call, after the host's method `name`."""
        method = getattr(self.host, name)

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            action(*args, **kwargs)
            return result

        setattr(self.host, name, wrapped)

    def keep_in_state_dict(self, module: nn.Module) -> None:
        """Let `module.state_dict()` carry the state of `bilevel`, as one tensor of bytes.

        A host that goes back to its best epoch then takes the steps and the history of α back
        with it, and a checkpoint of the host goes on where it was saved.
        """
        name = "aanets_state"

        def save(this: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
            if this is module:
                file = io.BytesIO()
                torch.save(self.bilevel.state_dict(), file)
                data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
                state_dict[prefix + name] = data

        def load(this: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
            data = state_dict.pop(prefix + name, None)
            if this is module and data is not None:
                file = io.BytesIO(data.cpu().numpy().tobytes())
                self._restore(torch.load(file, weights_only=True))

        module.register_state_dict_post_hook(save)  # type: ignore[no-untyped-call]
        module.register_load_state_dict_pre_hook(load)  # type: ignore[no-untyped-call]

    def _restore(self, state: dict[str, Any]) -> None:
        bilevel = self.bilevel
        now = (bilevel.phase_index, bilevel.in_phase)
        epoch = bilevel.epoch
        bilevel.load_state_dict(state)
        if now == (state["phase"], state["in_phase"]):
            bilevel.epoch = epoch  # the host goes back to an earlier epoch, but counts on

    def _steps(self) -> int:
        steps = self.steps_per_epoch()
        assert steps is not None
        return steps

    def _follow_network(self) -> None:
        """Go on with a network that the host put in the place of the one it had."""
        network = unwrapped(self.network())
        count = len(levels(network))
        if not count:
            raise PhaseError(
                f"{type(self.host).__name__} has another network now, a {type(network).__name__} "
                f"without adaptive levels. AANets needs the same backbone in every task."
            )
        if count != self._levels:
            raise PhaseError(
                f"The network of {type(self.host).__name__} has {count} adaptive levels and had "
                f"{self._levels} before: a copy of it, such as a teacher, is inside. α of the copy "
                f"would be changed. Let network() return the trained network without the copy."
            )
        self.bilevel.model = network

    # -- balanced data -----------------------------------------------------------------------------

    def balanced_loader(self) -> DataLoader[Any]:
        """Batches with equally many samples of every class seen so far, drawn once per phase."""
        if self._loader is None:
            parts = self._parts()
            labels = torch.cat([targets_of(part) for part in parts])
            chosen = self._draw(labels, self.config.per_class)
            self._loader = DataLoader(
                Subset(ConcatDataset(parts), chosen.tolist()), batch_size=self.batch_size
            )
            self._tell(labels, chosen)
        return self._loader

    def _parts(self) -> list[Any]:
        """The training data, and samples of the old classes that are not in it."""
        parts = [self.training_data()]
        for source in (self._memory, *self._kept):
            if source is not None:
                present = {label for part in parts for label in targets_of(part).tolist()}
                parts += _of_classes(source, self.seen - present)
        return parts

    def _keep_samples(self) -> None:
        """Keep some samples of the last phase's classes, where the host kept none."""
        present = {label for part in self._parts() for label in targets_of(part).tolist()}
        if self._last_data is None or not self.seen - present:
            return
        for part in _of_classes(self._last_data, self.seen - present):
            labels = targets_of(part)
            smallest = int(torch.unique(labels, return_counts=True)[1].min())
            count = min(self.config.per_class or EXEMPLARS_PER_CLASS, smallest)
            self._kept.append(Subset(part, self._draw(labels, count).tolist()))

    def _draw(self, labels: Tensor, per_class: int | None) -> Tensor:
        """Indices with equally many samples of each class.

        A class with too few samples gives each of them more than once: a draw of one sample per
        class would say little about the classes that have many.
        """
        seed = (self.seed + self.bilevel.phase_index) % 2**63
        generator = torch.Generator().manual_seed(seed)
        classes, counts = torch.unique(labels, return_counts=True)
        smallest = int(counts.min())
        wanted = per_class or max(smallest, min(FEWEST_PER_CLASS, int(counts.max())))
        if wanted <= smallest:
            return balanced_indices(labels, wanted, generator)
        chosen = []
        for label in classes:
            own = (labels == label).nonzero().flatten()
            own = own[torch.randperm(len(own), generator=generator)]
            chosen.append(own.repeat(-(-wanted // len(own)))[:wanted])
        indices = torch.cat(chosen)
        return indices[torch.randperm(len(indices), generator=generator)]

    def _tell(self, labels: Tensor, chosen: Tensor) -> None:
        classes = set(labels.tolist())
        count = len(chosen) // len(classes)
        logger.info(f"α learns on {count} samples of each of {len(classes)} classes.")
        if missing := self.seen - classes:
            logger.warning(
                f"{len(missing)} of {len(self.seen)} old classes have no sample in the memory of "
                f"{type(self.host).__name__}, so that α learns without them."
            )
        if (repeated := len(chosen) - len(set(chosen.tolist()))) > 0:
            logger.warning(
                f"some classes have fewer than {count} samples for α; theirs are used more than "
                f"once ({repeated} times in all)."
            )

    # -- the host's optimizers -------------------------------------------------------------------

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(unwrapped(self.network()).named_parameters())

    def _follow_parameters(self, before: dict[str, nn.Parameter]) -> None:
        after = self._parameters()
        optimizer = self.optimizer()
        if optimizer is not None:
            follow_parameters(optimizer, before, after)
        self.parameters_changed(before, after)

    def _remove_hooks(self) -> None:
        if self._no_decay is not None:
            self._no_decay.remove()
            self._no_decay = None


def _of_classes(data: Dataset[Any], classes: set[int]) -> list[Any]:
    """The part of a dataset with these classes; an empty list if it has none of them."""
    indices = [i for i, label in enumerate(targets_of(data).tolist()) if label in classes]
    return [Subset(data, indices)] if indices else []
