"""BilevelStrategy: the upper level of the training, α on a class-balanced subset (Eq. 8).

The lower level (Eq. 7) is the host's own loop. Phases, updates and the history of α live here, the
gradient in `alpha_gradient.py`, the step in `alpha_step.py`, the hook for loops that cannot be
edited in `attach.py`.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch import nn

from aanets_plugin.alpha_gradient import LossFunction, cross_entropy, mean_gradients, unwrapped
from aanets_plugin.alpha_step import NormalizedStep, PlainStep
from aanets_plugin.attach import Attachment, LoaderSource
from aanets_plugin.config import DEFAULTS, AANetConfig
from aanets_plugin.convert import freeze_base, thaw_base
from aanets_plugin.errors import (
    ConfigurationError,
    NonFiniteLossError,
    PhaseError,
    UnsupportedModelError,
)
from aanets_plugin.levels import levels
from aanets_plugin.scaling import absorb, scaled_layers


@dataclasses.dataclass(frozen=True)
class AlphaRecord:
    """α of one level after one update, and the balanced loss before it (None: α is fixed)."""

    phase: int
    epoch: int
    level: str
    weights: tuple[float, ...]
    loss: float | None


class BilevelStrategy:
    """Learns α of a converted model between the epochs of any training loop.

    The constructor puts the model into its base phase, in which there is one branch and nothing
    to aggregate; the end of phase 0 freezes θ_base. Build the optimizer of each phase after
    `begin_phase`, since the parameters change there.

    Args:
        model: a converted model; DataParallel, DDP or torch.compile may be around it.
        lr: how far α moves. With `normalize`, the length of the very first step; 0 keeps α
            fixed and makes no pass over the balanced data.
        momentum: share of the previous step that is taken again.
        normalize: scale each level's steps by all gradients it has had so far (AdaGrad), so
            that neither the scale of the loss nor the level matters. False: Eq. 8 as it stands.
        loss_fn: `loss_fn(model, batch)` gives the mean loss of a batch. Default: cross-entropy on
            batches `(x, y, …)` and outputs that are logits or a dict with `"logits"`.
        base_phase: False for a network that is trained already: phase 0 is incremental then.
        update_base: θ_base ← φ ⊙ θ_base after each phase (the paper's supplement A).
        schedule: factor on `lr` by the epoch in the phase, counted from 0.
        max_batches: how many batches of the balanced loader to use in an update. Default: all.

    Example:
        >>> bilevel = BilevelStrategy(convert_to_aanet(model))
        >>> for train_loader, balanced_loader in phases:
        ...     bilevel.begin_phase()
        ...     for epoch in range(epochs):
        ...         train_one_epoch(model, train_loader)
        ...         bilevel.after_epoch(balanced_loader)
        ...     bilevel.end_phase()
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
        if not levels(self.model):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no adaptive levels, so there is no α to learn. "
                f"Call convert_to_aanet(model) first."
            )
        AANetConfig(lr=lr, momentum=momentum, max_batches=max_batches)  # checks the values
        self.lr = lr
        self.loss_fn = loss_fn or cross_entropy
        self.base_phase = base_phase
        self.update_base = update_base
        self.schedule = schedule
        self.max_batches = max_batches
        self.step = (NormalizedStep if normalize else PlainStep)(momentum)
        self.phase_index = first_phase - 1
        self.epoch = 0
        self.in_phase = False
        self.history: list[AlphaRecord] = []
        self._attachment: Attachment | None = None
        if base_phase:
            thaw_base(self.model)
        elif not levels(self.model)[0].base_frozen:
            freeze_base(self.model)

    @classmethod
    def from_config(cls, model: nn.Module, config: AANetConfig, **options: Any) -> BilevelStrategy:
        """The strategy that `config` describes; `options` are `loss_fn` and those below it."""
        make = cls.official if config.official else cls
        return make(model, **config.learning, **options)

    @classmethod
    def official(cls, model: nn.Module, **options: Any) -> BilevelStrategy:
        """The authors' update to the letter: see `aanets_plugin.official.OfficialBilevel`."""
        from aanets_plugin.official import OfficialBilevel

        return OfficialBilevel(model, **options)

    # -- phases --------------------------------------------------------------------------------

    def begin_phase(self) -> None:
        """Start the next phase: α and its steps go on from where they are, momentum starts anew."""
        if self.in_phase:
            raise PhaseError(f"phase {self.phase_index} has not ended: call end_phase() first.")
        self.phase_index += 1
        self.epoch = 0
        self.in_phase = True
        self.step.begin_phase()
        self._phase_changed()

    @contextmanager
    def phase(self) -> Iterator[BilevelStrategy]:
        """A phase as a `with` block: `begin_phase` at its start, `end_phase` at its end.

        If the block raises an error, the phase stays open and θ_base is not frozen.

            with bilevel.phase():
                train(model)
        """
        self.begin_phase()
        try:
            yield self
        except BaseException:
            self.detach()
            raise
        self.end_phase()

    def after_epoch(self, balanced_loader: LoaderSource | None = None) -> float | None:
        """Update α once, on all of `balanced_loader`; returns the loss there before the update.

        The loader may be a callable that returns it; it is called only if α learns here.

        A no-op that returns None in the base phase, which has no α. Only counts and records where
        α cannot move: lr=0, or a model with a single branch.
        """
        self._require_phase("after_epoch")
        loss = None
        if not self.in_base_phase:
            if self.learns_alpha:
                if balanced_loader is None:
                    raise ConfigurationError(
                        f"after_epoch() in phase {self.phase_index} needs a balanced loader. Pass "
                        f"one over balanced_subset(new_data, exemplars)."
                    )
                loss = self._update(self._batches(balanced_loader))
            for level in levels(self.model):
                assert level.alpha is not None
                weights = tuple(level.alpha.tolist())
                record = AlphaRecord(self.phase_index, self.epoch, level.name, weights, loss)
                self.history.append(record)
        self.epoch += 1
        return loss

    def end_phase(self) -> None:
        """End the phase: after the base phase θ_base is frozen and the stable branches appear."""
        self._require_phase("end_phase")
        self.detach()
        if self.in_base_phase:
            freeze_base(self.model)
        else:
            if self.epoch:
                self._warn_if_phi_never_moved()
            if self.update_base:
                absorb(self.model)
        self.in_phase = False
        self._phase_changed()

    def _phase_changed(self) -> None:
        """For subclasses: a phase has begun or ended, or was restored."""

    @property
    def in_base_phase(self) -> bool:
        """Whether θ_base is being trained. Never so for a model whose base is frozen already."""
        first = self.base_phase and self.phase_index <= 0
        return first and not levels(self.model)[0].base_frozen

    @property
    def learns_alpha(self) -> bool:
        return self.lr > 0 and any(len(level.blocks) > 1 for level in levels(self.model))

    # -- a loop that cannot be edited ------------------------------------------------------------

    def attach(
        self,
        balanced_loader: LoaderSource,
        *,
        every: int | Callable[[], int],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Attachment:
        """Call `after_epoch(balanced_loader)` after every `every` optimizer steps, by a hook.

        Use it in a phase, around training code that cannot be edited:

            with bilevel.attach(balanced_loader, every=len(train_loader)):
                their_train(model)

        Without `with`, `detach()` or the end of the phase removes the hook. `balanced_loader` may
        be a callable that returns the loader, where exemplars change. `every` may be a callable
        too, for a number that is known once the training runs: it is asked at the first step.

        Without `optimizer`, the first one that trains a parameter of an adaptive level counts,
        and no other: neither one for the head alone nor one of a later fine-tuning.
        """
        self._require_phase("attach")
        if self._attachment is not None:
            raise PhaseError("already attached: call detach() first, or leave the with block.")
        if not callable(every) and every < 1:
            raise ConfigurationError(f"every={every}: expected the steps of an epoch, at least 1.")
        self._attachment = Attachment(self, balanced_loader, every, optimizer)
        return self._attachment

    def detach(self) -> None:
        """Remove the hook of `attach`, if there is one."""
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None

    # -- history and state -----------------------------------------------------------------------

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the history, one row per update and level."""
        branches = max((len(record.weights) for record in self.history), default=0)
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            weights = [f"alpha_{branch}" for branch in range(branches)]
            writer.writerow(["phase", "epoch", "level", "loss", *weights])
            for r in self.history:
                writer.writerow([r.phase, r.epoch, r.level, r.loss, *r.weights])

    def state_dict(self) -> dict[str, Any]:
        """All there is to go on from here, but for the model's own state_dict, which has α."""
        return {
            "levels": [level.name for level in levels(self.model)],
            "phase": self.phase_index,
            "epoch": self.epoch,
            "in_phase": self.in_phase,
            "step": self.step.state_dict(),
            "history": [dataclasses.asdict(record) for record in self.history],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`. Load the model's own state_dict as well, before or after."""
        names = [level.name for level in levels(self.model)]
        if state.get("levels") != names:
            raise ConfigurationError(
                f"the state is of a model with levels {state.get('levels')}, this one has {names}."
            )
        self.phase_index, self.epoch = state["phase"], state["epoch"]
        self.in_phase = state["in_phase"]
        base_is_over = not self.in_base_phase or (self.phase_index == 0 and not self.in_phase)
        if base_is_over and not levels(self.model)[0].base_frozen:
            freeze_base(self.model)
        self.step.load_state_dict(state["step"])
        self._phase_changed()
        self.history = [
            AlphaRecord(**{**record, "weights": tuple(record["weights"])})
            for record in state["history"]
        ]

    # -- the update ------------------------------------------------------------------------------

    def _update(self, batches: Iterable[Any]) -> float:
        """One step on the gradient of the mean loss over all batches, and over all ranks."""
        try:
            loss, gradients = mean_gradients(self.model, self.loss_fn, batches)
        except NonFiniteLossError as error:
            where = f"in phase {self.phase_index}, epoch {self.epoch}"
            raise NonFiniteLossError(f"{where}: {error}") from None
        with torch.no_grad():
            for level, gradient in zip(levels(self.model), gradients, strict=True):
                assert level.alpha is not None
                alpha = level.alpha.detach().double().cpu()
                level.alpha.copy_(self.step(level.name, alpha, gradient.cpu(), self.current_lr))
        return loss

    @property
    def current_lr(self) -> float:
        return self.lr * (self.schedule(self.epoch) if self.schedule else 1.0)

    def _batches(self, balanced_loader: LoaderSource) -> Iterator[Any]:
        # Lazy: a DataLoader draws from torch's random numbers when its iterator is made.
        loader = balanced_loader() if callable(balanced_loader) else balanced_loader
        yield from itertools.islice(loader, self.max_batches)

    def _require_phase(self, what: str) -> None:
        if not self.in_phase:
            raise PhaseError(f"{what}() outside a phase: call begin_phase() first.")

    def _warn_if_phi_never_moved(self) -> None:
        phi = [layer.phi for layer in scaled_layers(self.model) if layer.phi.requires_grad]
        if phi and all(bool((p == 1).all()) for p in phi):
            warnings.warn(
                f"φ did not move in phase {self.phase_index}, so the optimizer does not have it. "
                f"Build the optimizer after begin_phase().",
                stacklevel=3,
            )
