"""HostAdapter: the base of the adapters to PyCIL, mammoth and FACIL, and of your own.

A host is a codebase with its own training loop. An adapter says where the host has the network, the
data of a task and the memory. `HostAdapter` does the rest: it converts the backbone, makes each
task a phase, and updates α after every epoch of the main training on class-balanced data. No file
of the host is edited.

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
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aanets_plugin.alpha_gradient import LossFunction, unwrapped
from aanets_plugin.attach import Attachment
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.default_loss import check_strategy_options, cross_entropy, logits_of
from aanets_plugin.errors import PhaseError, UnsupportedModelError
from aanets_plugin.levels import levels

from .optimizer import follow_parameters
from .samples import BalancedSamples


class HostAdapter:
    """AANets for one learner of a host. The learner gets the attribute `bilevel`.

    A subclass defines `network` and `training_data`, and other methods of the first group if the
    defaults do not fit. It also says when a phase begins and ends: with `phase_around`, or with
    `begin_phase` and `end_phase`, which `before` and `after` can call.

    Args:
        host: The learner.
        loss_fn: `loss_fn(model, batch)` returns the loss of a balanced batch. It gets the network
            in eval mode. Default: `self.loss`.
        base_phase: False if the network is trained already.
        batch_size: Batch size of the passes over the balanced data. It changes speed and memory
            only.
        options: Options of `AANetConfig`.
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
        config = AANetConfig(**options)
        check_strategy_options(loss_fn, base_phase)
        self.samples = BalancedSamples(
            type(host).__name__, config.per_class, batch_size, balanced=config.balanced
        )
        self._attachment: Attachment | None = None
        self._warned = False
        before = self._parameters()
        convert_to_aanet(self.backbone(), **config.conversion)
        self.bilevel = BilevelStrategy.from_config(
            self.network(), config, loss_fn=loss_fn or self.loss, base_phase=base_phase
        )
        self._levels = len(levels(self.bilevel.model))
        self._follow_parameters(before)
        host.bilevel = self.bilevel

    # -- where things are in the host ------------------------------------------------------------

    def network(self) -> nn.Module:
        """Return the whole network with its head and without teachers. `loss` calls it."""
        raise NotImplementedError

    def backbone(self) -> nn.Module:
        """Return the module to convert: a part of the network, or all of it."""
        return unwrapped(self.network())

    def training_data(self) -> Any:
        """Return the dataset of the current phase. It may contain exemplars."""
        raise NotImplementedError

    def memory(self) -> Any:
        """Return a dataset with samples of old classes, or None if there is no memory.

        Its items must have the form of those of the training data. It is called when a phase
        begins. Samples of new classes are ignored. If neither dataset has a sample of an old class,
        samples of the phase in which the class was new are kept for α alone.
        """
        return None

    def steps_per_epoch(self) -> int | None:
        """Return the optimizer steps of one epoch. It is called at the first step of the phase.

        None: the adapter calls `after_epoch` itself.
        """
        return None

    def logits(self, outputs: Any) -> Tensor:
        """Return the logits of the classes in the output of the network."""
        return logits_of(outputs)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a balanced batch. The model is in eval mode."""
        return cross_entropy(model, batch, self.bilevel.classes, self.logits)

    def optimizer(self) -> Optimizer | None:
        """Return an optimizer that the host keeps between phases. New parameters are added to it.

        None: the host builds an optimizer for each task.
        """
        return None

    def parameters_changed(
        self, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]
    ) -> None:
        """Called when parameters may be new: after the conversion, a phase or a checkpoint.

        For hosts that keep data about parameters.
        """

    # -- phases ----------------------------------------------------------------------------------

    def begin_phase(self) -> None:
        """Begin a phase. The data and the memory of the task must be available."""
        self._follow_network()
        memory = self.memory()
        self.bilevel.begin_phase()
        self.samples.begin_phase(self.training_data(), memory)
        if type(self).steps_per_epoch is not HostAdapter.steps_per_epoch:
            self._attachment = self.bilevel.attach(self.samples.loader, every=self._steps)

    def after_epoch(self) -> None:
        """Update α. For hosts that say when an epoch ends, so that no steps are counted."""
        self.bilevel.after_epoch(self.samples.loader)

    def end_phase(self) -> None:
        """End the phase, right after the main training.

        The end of phase 0 adds parameters. Code of the host that reads parameters after the
        training, such as EWC's, should run after this.
        """
        self._warn_if_the_backbone_was_fixed()
        self.samples.end_phase()
        before = self._parameters()
        self.bilevel.end_phase()
        self._follow_parameters(before)

    def cancel_phase(self) -> None:
        """Leave the phase as if it had not begun, for a task in which nothing is trained."""
        self._attachment = None
        self.samples.end_phase()
        self.bilevel.cancel_phase()

    def _warn_if_the_backbone_was_fixed(self) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is None or attachment.steps or self.bilevel.in_base_phase or self._warned:
            return
        self._warned = True  # it is so in every later phase
        warnings.warn(
            f"{type(self.host).__name__} did not train the backbone in phase "
            f"{self.bilevel.phase_index}, so α did not learn. AANets changes nothing for methods "
            f"that keep the backbone fixed.",
            stacklevel=3,
        )

    def phase_around(self, name: str) -> None:
        """Make each call of the host's method `name` a phase."""
        method = getattr(self.host, name)

        def phase(*args: Any, **kwargs: Any) -> Any:
            self.begin_phase()
            try:
                result = method(*args, **kwargs)
            except BaseException:
                self.bilevel.detach()
                raise
            self.end_phase()
            return result

        self._put(name, phase)

    def before(self, name: str, action: Callable[..., object]) -> None:
        """Run `action`, with the arguments of the call, before the host's method `name`."""
        method = getattr(self.host, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            action(*args, **kwargs)
            return method(*args, **kwargs)

        self._put(name, wrapped)

    def after(self, name: str, action: Callable[..., object]) -> None:
        """Run `action`, with the arguments of the call, after the host's method `name`."""
        method = getattr(self.host, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            action(*args, **kwargs)
            return result

        self._put(name, wrapped)

    def _put(self, name: str, call: Callable[..., Any]) -> None:
        setattr(self.host, name, _Replaced(self.host, name, call))

    def keep_in_state_dict(self, module: nn.Module) -> None:
        """Add the state of `bilevel` to `module.state_dict()`, as one tensor of bytes.

        So a host that restores its best epoch also restores the steps and the history of α, and a
        checkpoint of the host continues where it was saved.
        """
        name = "aanets_state"
        before: dict[str, nn.Parameter] = {}

        def save(this: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
            if this is module:
                file = io.BytesIO()
                torch.save({**self.bilevel.state_dict(), "seen": sorted(self.samples.seen)}, file)
                data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
                state_dict[prefix + name] = data

        def load(this: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
            data = state_dict.pop(prefix + name, None)
            if this is module:
                before.clear()
                before.update(self._parameters())
            if this is module and data is not None:
                file = io.BytesIO(data.cpu().numpy().tobytes())
                self._restore(torch.load(file, weights_only=True))

        def loaded(this: nn.Module, *_: Any) -> None:
            if this is module:
                self._follow_parameters(before)

        module.register_state_dict_post_hook(save)  # type: ignore[no-untyped-call]
        module.register_load_state_dict_pre_hook(load)  # type: ignore[no-untyped-call]
        module.register_load_state_dict_post_hook(loaded)  # type: ignore[no-untyped-call]

    def _restore(self, state: dict[str, Any]) -> None:
        bilevel = self.bilevel
        now = (bilevel.phase_index, bilevel.in_phase)
        epoch = bilevel.epoch
        bilevel.load_state_dict(state)
        self.samples.seen = set(state["seen"])
        if now == (state["phase"], state["in_phase"]):
            bilevel.epoch = epoch  # the host restores an earlier epoch, but goes on counting

    def _steps(self) -> int:
        steps = self.steps_per_epoch()
        assert steps is not None
        return steps

    def _follow_network(self) -> None:
        """Use the network that the host has now, which may be a copy of the one before."""
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

    # -- the host's optimizers -------------------------------------------------------------------

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(unwrapped(self.network()).named_parameters())

    def _follow_parameters(self, before: dict[str, nn.Parameter]) -> None:
        after = self._parameters()
        optimizer = self.optimizer()
        if optimizer is not None:
            follow_parameters(optimizer, before, after)
        self.parameters_changed(before, after)


class _Replaced:
    """A method that replaces one of a host. It works on that host alone, so that it is not copied.

    Copies of a function are the function itself. With one, a copy of the host would train the host.
    """

    def __init__(self, host: Any, name: str, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, getattr(host, name), updated=())
        self.call, self.name = call, f"{type(host).__name__}.{name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        raise UnsupportedModelError(
            f"{self.name} cannot be copied: the copy would train the learner that it is from. Copy "
            f"the learner before with_aanets, or copy its network alone."
        )
