"""Lightning: AANetCallback learns α between the epochs of `trainer.fit`.

Examples:
    aanets = AANetCallback(balanced=lambda: balanced_loader)
    for train_loader in tasks:
        trainer = Trainer(max_epochs=10, callbacks=[aanets])
        trainer.fit(module, train_loader)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the other name of the same package
    from pytorch_lightning.callbacks import Callback

from aanets_plugin.alpha_gradient import LossFunction
from aanets_plugin.attach import LoaderSource
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.default_loss import check_strategy_options
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.levels import levels, named_levels


class AANetCallback(Callback):  # type: ignore[misc]
    """Converts a LightningModule's network and learns α after each training epoch.

    Every `trainer.fit` is a phase. The first one trains θ_base, and its end freezes the base. α is
    logged as `alpha/<level>`: the weight of the plastic branch. Lightning's checkpoints hold the
    state of α, and a fit, validation or test with `ckpt_path` goes on from there.

    Use one callback for all trainers of a run. `callback.bilevel` has the history of α.

    Args:
        balanced: The loader of class-balanced batches, such as one over
            `balanced_subset(new_data, exemplars)`, or a function that returns it. A function is
            called for each update, and never in the first phase.
        network: The name of the network in the module, "net" for `module.net`. Default: the whole
            module, whose forward then gives the logits.
        loss_fn: `loss_fn(network, batch)` returns the loss of a balanced batch. It gets the network
            in eval mode. Default: cross-entropy, as in `BilevelStrategy`.
        base_phase: False if the network is trained already.
        options: Options of `AANetConfig`.
    """

    def __init__(
        self,
        balanced: LoaderSource,
        *,
        network: str = "",
        loss_fn: LossFunction | None = None,
        base_phase: bool = True,
        **options: Any,
    ) -> None:
        check_strategy_options(loss_fn, base_phase)
        if not isinstance(network, str):
            raise ConfigurationError(
                f"network={network!r:.80}: must be the name of the network in the module."
            )
        self.balanced = balanced
        self.network = network
        self.loss_fn = loss_fn
        self.base_phase = base_phase
        self.config = AANetConfig(**options)
        self._bilevel: BilevelStrategy | None = None
        self._in_block = False
        self._fits = False

    @property
    def bilevel(self) -> BilevelStrategy:
        """Phases, updates and history of α; there is one as soon as `trainer.fit` has begun."""
        if self._bilevel is None:
            raise ConfigurationError("AANetCallback has no history before trainer.fit.")
        return self._bilevel

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Make all calls of `trainer.fit` in a `with` block one phase.

        with aanets.phase():
            trainer.fit(module, train_loader)
            other_trainer.fit(module, train_loader)
        """
        self._in_block = True
        try:
            yield
        finally:
            self._in_block = False
        self.bilevel.end_phase()

    # -- what Lightning calls ----------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Convert the network and begin the phase, before a checkpoint and the optimizers."""
        network = self._network_of(pl_module)
        if self._bilevel is None:
            if not levels(network):
                convert_to_aanet(network, **self.config.conversion)
            self._bilevel = BilevelStrategy.from_config(
                network, self.config, loss_fn=self.loss_fn, base_phase=self.base_phase
            )
        elif self._bilevel.model is not network:
            raise ConfigurationError(
                f"trainer.{stage} has another {type(network).__name__} than before. An "
                f"AANetCallback belongs to one module: make one for each."
            )
        self._fits = stage == "fit"
        self._begin_phase()

    def _network_of(self, module: nn.Module) -> nn.Module:
        try:
            return module.get_submodule(self.network)
        except AttributeError:
            names = ", ".join(repr(name) for name, _ in module.named_children())
            raise ConfigurationError(
                f"network={self.network!r}: {type(module).__name__} has no such module. It has "
                f"{names}."
            ) from None

    def _begin_phase(self) -> None:
        if self._fits and not self.bilevel.in_phase:
            self.bilevel.begin_phase()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of α for Lightning's checkpoint."""
        return {} if self._bilevel is None else self._bilevel.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint: called between `setup` and the making of the optimizers."""
        self.bilevel.load_state_dict(state_dict)
        self._begin_phase()  # if it was saved between two phases

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """One update of α (Eq. 8)."""
        self.bilevel.after_epoch(self.balanced)
        for name, level in named_levels(self.bilevel.model).items():
            if level.alpha is not None:
                pl_module.log(f"alpha/{name}", level.alpha[0].item(), sync_dist=True)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the phase, unless a `with callback.phase():` block does."""
        if not self._in_block:
            self.bilevel.end_phase()
