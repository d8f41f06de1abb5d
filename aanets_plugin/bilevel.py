"""BilevelStrategy: the upper level of the training, which learns α on balanced data (Eq. 8).

The lower level (Eq. 7) is the training loop of the host. This file has the phases and the update.
An update is made of

    balanced_data.py    the batches and the classes of the balanced loader
    default_loss.py     the loss of a batch
    alpha_gradient.py   the gradient of α
    alpha_step.py       the step from the gradient to the next α
    alpha_history.py    AlphaRecord, and the history as a CSV file

and `attach.py` calls it in loops that cannot be edited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from aanets_plugin.alpha_gradient import LossFunction, mean_gradients, unwrapped
from aanets_plugin.alpha_history import AlphaRecord as AlphaRecord
from aanets_plugin.alpha_history import from_state, records_of, to_state, write_csv
from aanets_plugin.alpha_step import NormalizedStep, PlainStep
from aanets_plugin.attach import Attachment, LoaderSource, OptimizerChoice
from aanets_plugin.balanced_data import BalancedData
from aanets_plugin.checks import integer
from aanets_plugin.config import DEFAULTS, AANetConfig, factor_of
from aanets_plugin.convert import freeze_base, require_converted, thaw_base
from aanets_plugin.default_loss import check_strategy_options
from aanets_plugin.divergence import check_finite_weights
from aanets_plugin.errors import ConfigurationError, NonFiniteLossError, PhaseError
from aanets_plugin.levels import levels, named_levels
from aanets_plugin.parallel import check_same_weights, watch_wrapper
from aanets_plugin.phi_warnings import warn_if_phi_is_absurd, warn_if_phi_never_moved
from aanets_plugin.scaling import absorb


class BilevelStrategy:
    """Updates α of a converted model after each epoch of any training loop.

    The constructor puts the model into its base phase: each level has one branch, and there is no
    α. The end of phase 0 freezes θ_base and adds the stable branches. Parameters are added there,
    so build the optimizer of each phase after `begin_phase`. If the model was loaded with a frozen
    θ_base, or `freeze_base` was called, it stays as it is, and phase 0 is incremental.

    Args:
        model: A converted model. DataParallel, DDP or torch.compile may wrap it. A DDP must be made
            after `begin_phase`, in each phase anew, because it does not learn of new parameters.
        lr: Step size of α. With `normalize` it is the length of the first step. 0 keeps α fixed,
            and the balanced data are not read.
        momentum: Momentum of the steps.
        normalize: Divide the steps of each level by its past gradients (AdaGrad), so that the
            scale of the loss does not matter. False: Eq. 8 as printed.
        schedule: Factor on `lr` as a function of the epoch in the phase, counted from 0.
        update_base: Multiply φ into θ_base after each phase (the paper's supplement A).
        max_batches: Number of balanced batches in one update. Default: all.
        loss_fn: `loss_fn(model, batch)` returns the mean loss of a batch of the balanced loader.
            It gets the `model` that is passed here (without its wrappers), in eval mode. Default:
            cross-entropy for batches `(x, y, …)`, `(index, x, y, …)` or dicts with "image" and
            "label", and for models that return logits, a dict with "logits" or a list of heads.
            Logits of classes that the dataset of the balanced loader does not have are left out.
        base_phase: False if the network is trained already. Then phase 0 is incremental.
        first_phase: Number of the first phase. Pass 1 with `base_phase=False` if the plain network
            was trained as phase 0.

    Examples:
        >>> import torch
        >>> from aanets_plugin import convert_to_aanet
        >>> from aanets_plugin.baselines import resnet20
        >>> model = resnet20(num_classes=4)
        >>> bilevel = BilevelStrategy(convert_to_aanet(model))
        >>> x, y = torch.randn(8, 3, 32, 32), torch.arange(8) % 4
        >>> for task in range(2):
        ...     with bilevel.phase():
        ...         optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...         torch.nn.functional.cross_entropy(model(x), y).backward()
        ...         optimizer.step()  # your training of one epoch
        ...         loss = bilevel.after_epoch([(x, y)])
        >>> [(record.phase, record.level) for record in bilevel.history]
        [(1, 'layer1'), (1, 'layer2'), (1, 'layer3')]
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = DEFAULTS.lr,
        momentum: float = DEFAULTS.momentum,
        normalize: bool = DEFAULTS.normalize,
        schedule: Callable[[int], float] | None = DEFAULTS.schedule,
        update_base: bool = DEFAULTS.update_base,
        max_batches: int | None = DEFAULTS.max_batches,
        loss_fn: LossFunction | None = None,
        base_phase: bool = True,
        first_phase: int = 0,
    ) -> None:
        self.model = unwrapped(model)
        require_converted(self.model, "BilevelStrategy")
        config = AANetConfig(
            lr=lr,
            momentum=momentum,
            normalize=normalize,
            schedule=schedule,
            update_base=update_base,
            max_batches=max_batches,
        )
        check_strategy_options(loss_fn, base_phase)
        if integer(first_phase) is None:
            raise ConfigurationError(f"first_phase={first_phase!r}: must be an integer.")
        self.lr = config.lr
        self._data = BalancedData()
        self.loss_fn = loss_fn or self._data.cross_entropy
        self.base_phase = base_phase
        self.update_base = update_base
        self.schedule = schedule
        self.max_batches = config.max_batches
        self.step = (NormalizedStep if normalize else PlainStep)(config.momentum)
        self.phase_index = first_phase - 1
        self.epoch = 0
        self.in_phase = False
        self.history: list[AlphaRecord] = []
        self._phi_is_sane = True
        self._attachment: Attachment | None = None
        self._wrapper_check: RemovableHandle | None = None
        first = levels(self.model)[0]
        if base_phase and (first.from_conversion or not first.base_frozen):
            thaw_base(self.model)
        elif not first.base_frozen:
            freeze_base(self.model)

    @classmethod
    def from_config(cls, model: nn.Module, config: AANetConfig, **options: Any) -> BilevelStrategy:
        """Return the strategy for `config`: this class, or the official update.

        `options` are the arguments that are not part of the config, such as `loss_fn`.
        """
        make = cls.official if config.official else cls
        return make(model, **config.learning, **options)

    @classmethod
    def official(cls, model: nn.Module, **options: Any) -> BilevelStrategy:
        """Return an `OfficialBilevel`, which updates α exactly as the authors' code does."""
        from aanets_plugin.official import OfficialBilevel

        return OfficialBilevel(model, **options)

    # -- phases --------------------------------------------------------------------------------

    def begin_phase(self) -> None:
        """Begin the next phase. α keeps its value; the momentum of its steps is reset."""
        if self.in_phase:
            raise PhaseError(f"Phase {self.phase_index} has not ended. Call end_phase() first.")
        self.phase_index += 1
        self.epoch = 0
        self.in_phase = True
        self.step.begin_phase()
        self._phi_is_sane = True
        self._phase_changed()

    @contextmanager
    def phase(self) -> Iterator[BilevelStrategy]:
        """Run a `with` block as one phase: `begin_phase` before it, `end_phase` after it.

        If the block raises an error, the phase stays open and θ_base is not frozen.
        """
        self.begin_phase()
        try:
            yield self
        except BaseException:
            self.detach()
            raise
        self.end_phase()

    def after_epoch(self, balanced_loader: LoaderSource | None = None) -> float | None:
        """Update α once on all batches of `balanced_loader`; call this after each epoch.

        In the base phase there is no α, and only the epoch is counted. If α cannot change (`lr=0`,
        or a single branch), its value is recorded and the loader is not read. Returns the balanced
        loss before the update, or None if there was no update.

        Args:
            balanced_loader: A loader over balanced data, or a function that returns one. The
                function is called only if α is updated.
        """
        self._require_phase("after_epoch")
        loss = None
        if self.in_base_phase or not self.learns_alpha:  # otherwise the balanced loss shows it
            check_finite_weights(self.model, self.phase_index, self.epoch)
        if self.in_base_phase:
            self._data.remember_classes(balanced_loader, self.phase_index)
        else:
            if self.learns_alpha:
                check_same_weights(self.model)
                batches = self._data.batches(balanced_loader, self.phase_index, self.max_batches)
                try:
                    loss = self._update(batches)
                except NonFiniteLossError as error:
                    where = f"Phase {self.phase_index}, epoch {self.epoch}"
                    raise NonFiniteLossError(f"{where}: {error}") from None
            self.history += records_of(self.model, self.phase_index, self.epoch, loss)
            if self.epoch == 0:
                warn_if_phi_never_moved(self.model, self.phase_index)
            if self._phi_is_sane:  # warn once in a phase
                self._phi_is_sane = not warn_if_phi_is_absurd(self.model, self.phase_index)
        self.epoch += 1
        return loss

    def end_phase(self) -> None:
        """End the phase. The end of the base phase freezes θ_base and adds the stable branches.

        Call it right after the training. Code that reads parameters or their gradients after the
        training, such as EWC's, comes after it, with an optimizer that is built after it.
        """
        self._require_phase("end_phase")
        self.detach()
        if self.in_base_phase:
            freeze_base(self.model)
        else:
            if self._phi_is_sane:
                warn_if_phi_is_absurd(self.model, self.phase_index)
            if self.update_base:
                absorb(self.model)
        self.in_phase = False
        self._phase_changed()

    def cancel_phase(self) -> None:
        """Leave the phase as if it had not begun, for a task in which nothing was trained."""
        self._require_phase("cancel_phase")
        self.detach()
        self.phase_index -= 1
        self.in_phase = False
        self._phase_changed()

    def _phase_changed(self) -> None:
        """Called after a phase begins, ends or is restored. Subclasses may do more."""
        if self._wrapper_check is not None:
            self._wrapper_check.remove()
        self._wrapper_check = watch_wrapper(self.model) if self.in_phase else None

    @property
    def in_base_phase(self) -> bool:
        """Whether θ_base is still being trained. False if the base of the model is frozen."""
        first = self.base_phase and self.phase_index <= 0
        return first and not levels(self.model)[0].base_frozen

    @property
    def classes(self) -> Tensor | None:
        """The classes of the balanced data in the last update; None if they are unknown."""
        return self._data.classes

    @property
    def learns_alpha(self) -> bool:
        """Whether an update can change α: `lr` is positive and a level has several branches."""
        return self.lr > 0 and any(len(level.blocks) > 1 for level in levels(self.model))

    # -- a loop that cannot be edited ------------------------------------------------------------

    def attach(
        self,
        balanced_loader: LoaderSource,
        *,
        every: int | Callable[[], int],
        optimizer: OptimizerChoice | None = None,
    ) -> Attachment:
        """Call `after_epoch(balanced_loader)` after every `every` optimizer steps.

        Use it inside a phase, around training code that cannot be edited:

            with bilevel.attach(balanced_loader, every=len(train_loader)):
                their_train(model)

        Without `with`, the hook is removed by `detach()` or at the end of the phase.

        Args:
            balanced_loader: A loader over balanced data, or a function that returns one.
            every: Optimizer steps per epoch, or a function that returns them. The function is
                called at the first step, when the host has built its loader.
            optimizer: The optimizer whose steps are counted. Default: the first one that trains a
                parameter of an adaptive level. Other optimizers, such as one for the head alone or
                for a later fine-tuning, are not counted. A function is asked about each optimizer
                that trains a level: `optimizer=lambda optimizer: True` counts all of them, for a
                loop that makes a new one in each epoch.
        """
        self._require_phase("attach")
        if self._attachment is not None:
            raise PhaseError("Already attached. Call detach() or leave the with block first.")
        self._attachment = Attachment(self, balanced_loader, every, optimizer)
        return self._attachment

    def detach(self) -> None:
        """Remove the hook that `attach` added, if any."""
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None

    # -- history and state -----------------------------------------------------------------------

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the history to a CSV file, one row per update and level."""
        write_csv(self.history, path)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of phases, steps and history. α itself is in the model's state_dict."""
        return {
            "levels": list(named_levels(self.model)),
            "phase": self.phase_index,
            "epoch": self.epoch,
            "in_phase": self.in_phase,
            "step": self.step.state_dict(),
            "history": to_state(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from a state_dict. Load the model's state_dict too, before or after."""
        names = list(named_levels(self.model))
        if state.get("levels") != names:
            raise ConfigurationError(
                f"The state is of a model with levels {state.get('levels')}; this model has "
                f"{names}. Load it into a model that was converted with the same stages."
            )
        self.phase_index, self.epoch = state["phase"], state["epoch"]
        self.in_phase = state["in_phase"]
        base_is_over = not self.in_base_phase or (self.phase_index == 0 and not self.in_phase)
        if base_is_over and not levels(self.model)[0].base_frozen:
            freeze_base(self.model)
        self.step.load_state_dict(state["step"])
        self._phase_changed()
        self.history = from_state(state["history"])

    # -- the update ------------------------------------------------------------------------------

    def _update(self, batches: Iterable[Any]) -> float:
        """Make one step along the gradient of the mean loss over all batches and ranks."""
        loss, gradients = mean_gradients(self.model, self.loss_fn, batches)
        with torch.no_grad():
            named = named_levels(self.model).items()
            for (name, level), gradient in zip(named, gradients, strict=True):
                assert level.alpha is not None
                alpha = level.alpha.detach().double().cpu()
                level.alpha.copy_(self.step(name, alpha, gradient.cpu(), self.current_lr))
        return loss

    @property
    def current_lr(self) -> float:
        """The step size in this epoch."""
        return self.lr * (factor_of(self.schedule, self.epoch) if self.schedule else 1.0)

    def _require_phase(self, what: str) -> None:
        if not self.in_phase:
            raise PhaseError(f"{what}() was called outside a phase. Call begin_phase() first.")
