"""AANetPlugin: AANets for any Avalanche strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import Tensor, nn

from aanets_plugin.alpha_gradient import LossFunction, unwrapped
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import DEFAULTS, EXEMPLARS_PER_CLASS, AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.default_loss import check_strategy_options
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.levels import levels

from ..optimizer import follow_parameters
from . import compat
from .balanced import BalancedData
from .losses import default_loss
from .scratch import add_stable_side, stable_state
from .support import check_experience, check_strategy


class AANetPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Converts the strategy's model to an AANet and learns α. Every experience is a phase.

    The first experience trains θ_base with one branch. At its end θ_base is frozen and the stable
    branches are added. In later experiences α learns on class-balanced data after each epoch. The
    model, the optimizer with its parameter groups, and other plugins stay in use.

    Strategies that reset the network in every experience (GDumb, FromScratchTraining) reset the
    plastic branches and the head; the stable branches stay those of the first experience.
    JointTraining has a single experience, so it trains only θ_base unless `base_phase=False`. In an
    online stream, α learns at the end of the last part of an experience.

    The options of `AANetConfig` have the same names here. Those of the conversion (`blocks`,
    `stem`, `stages`, `alpha`) are ignored if the model is already converted.

    Args:
        per_class: Maximum number of balanced samples, and of stored exemplars, per class.
        balanced: False: α learns on all training data and exemplars of the experience, for
            comparison.
        loss_fn: `loss_fn(model, batch)` returns the loss of a batch (x, y, task label) on the CPU.
            Default: cross-entropy of the class logits; for SCR, its contrastive loss.
        base_phase: False for a trained model, whose first experience is an incremental phase.
        storage_policy: Exemplars of the old classes for α. This plugin fills it, unless the
            strategy or another plugin uses the same one. Default: see `BalancedData`.
        batch_size: Batch size of the balanced data; affects speed and memory only. Default: the
            strategy's `train_mb_size`.

    Example, for Replay:

        plugin = AANetPlugin()
        strategy = Replay(model=model, optimizer=optimizer, mem_size=2000, plugins=[plugin])
        for experience in benchmark.train_stream:
            strategy.train(experience)
        plot_alpha(plugin.bilevel.history, "alpha.png")

    `maybe_load_checkpoint` creates a new plugin object; `AANetPlugin.of(strategy)` returns it.
    """

    def __init__(
        self,
        *,
        blocks: Sequence[str] = DEFAULTS.blocks,
        stem: str = DEFAULTS.stem,
        stages: Sequence[str] | None = DEFAULTS.stages,
        alpha: Sequence[float] | None = DEFAULTS.alpha,
        lr: float | None = None,
        momentum: float | None = None,
        normalize: bool = DEFAULTS.normalize,
        official: bool | str = DEFAULTS.official,
        phi_decay: float | None = DEFAULTS.phi_decay,
        schedule: Callable[[int], float] | None = DEFAULTS.schedule,
        update_base: bool = DEFAULTS.update_base,
        max_batches: int | None = DEFAULTS.max_batches,
        per_class: int = EXEMPLARS_PER_CLASS,
        balanced: bool = DEFAULTS.balanced,
        loss_fn: LossFunction | None = None,
        base_phase: bool = True,
        storage_policy: ExemplarsBuffer | None = None,
        batch_size: int | None = None,
    ) -> None:
        given = locals()
        super().__init__()
        names = [field.name for field in dataclasses.fields(AANetConfig)]
        self.config = AANetConfig(**{name: given[name] for name in names})
        check_strategy_options(loss_fn, base_phase)
        self.base_phase = base_phase
        self.loss_fn = loss_fn
        self.balanced = BalancedData(storage_policy, per_class, batch_size, balanced)
        self._bilevel: BilevelStrategy | None = None
        self._parts_left = 0
        self._stable_state: dict[str, Tensor] | None = None

    @property
    def bilevel(self) -> BilevelStrategy:
        """The BilevelStrategy with the phases, updates and history of α."""
        if self._bilevel is None:
            raise ConfigurationError(
                "AANetPlugin has no history before training begins. After loading a checkpoint, "
                "get the plugin with AANetPlugin.of(strategy)."
            )
        return self._bilevel

    @classmethod
    def of(cls, strategy: Any) -> AANetPlugin:
        """Return the AANetPlugin of a strategy."""
        for plugin in strategy.plugins:
            if isinstance(plugin, cls):
                return plugin
        raise ConfigurationError(
            f"{type(strategy).__name__} has no AANetPlugin. Pass plugins=[AANetPlugin()]."
        )

    # -- phases ----------------------------------------------------------------------------------

    def before_training(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Convert the model before the strategy or other plugins copy it."""
        check_strategy(strategy)
        if sum(isinstance(plugin, AANetPlugin) for plugin in strategy.plugins) > 1:
            raise ConfigurationError(
                f"{type(strategy).__name__} has several AANetPlugins, which would all change α. "
                f"Pass one."
            )
        compat.prepare(strategy)  # each time, because a resumed run is a new process
        if self._bilevel is not None:
            return
        model = unwrapped(strategy.model)
        before = dict(model.named_parameters())
        if not levels(model):
            convert_to_aanet(model, **self.config.conversion)
        loss_fn = self.loss_fn or default_loss(strategy)
        self._bilevel = BilevelStrategy.from_config(
            model, self.config, loss_fn=loss_fn, base_phase=self.base_phase
        )
        self._parameters_changed(strategy, before)

    def after_train_dataset_adaptation(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Begin the phase, in the last callback before Avalanche updates the optimizer."""
        if not self._begins(strategy.experience):
            return
        before = dict(self.bilevel.model.named_parameters())
        if self.bilevel.in_phase:  # train() was called with several experiences
            self.bilevel.end_phase()
        self._follow_model(unwrapped(strategy.model))
        self.bilevel.begin_phase()
        self._parameters_changed(strategy, before)

    def after_training_epoch(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Update α once (Eq. 8)."""
        if not self._ends:
            return
        workers, phase = kwargs.get("num_workers", 0), self.bilevel.phase_index
        self.bilevel.after_epoch(lambda: self.balanced.loader(strategy, phase, workers))

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Store exemplars of the experience, at the end of its last part."""
        if self._ends:
            self.balanced.experience_ended(strategy)

    def after_training(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """End the phase, after all plugins have used the trained network.

        This adds parameters, which Avalanche's plugins expect to happen between experiences.
        """
        if self.bilevel.in_phase and self._ends:
            before = dict(self.bilevel.model.named_parameters())
            self.bilevel.end_phase()
            self._parameters_changed(strategy, before)

    def _begins(self, experience: Any) -> bool:
        """Whether this is a whole experience, or the first part of one in an online stream.

        Parts are counted, because Avalanche marks the last one only if it is smaller.
        """
        check_experience(experience)
        first = getattr(experience, "is_first_subexp", True)
        if first:
            self._parts_left = getattr(experience, "sub_stream_length", 1)
        self._parts_left -= 1
        return bool(first)

    @property
    def _ends(self) -> bool:
        return self._parts_left == 0

    def _follow_model(self, model: nn.Module) -> None:
        """Switch to `model` if the strategy has replaced the trained one."""
        old = self.bilevel.model
        if model is old:
            return
        if not levels(model):
            raise ConfigurationError(
                f"the strategy has a new model, a {type(model).__name__} without adaptive levels. "
                f"An AANetPlugin belongs to one strategy: make one for each."
            )
        if levels(old)[0].base_frozen and not levels(model)[0].base_frozen:
            if self._stable_state is None or self.bilevel.update_base:
                self._stable_state = stable_state(old)
            add_stable_side(model, self._stable_state)
        self.bilevel.model = model

    def _parameters_changed(self, strategy: Any, before: dict[str, nn.Parameter]) -> None:
        after = dict(self.bilevel.model.named_parameters())
        if list(map(id, before.values())) == list(map(id, after.values())):
            return
        follow_parameters(strategy.optimizer, before, after)
        if getattr(strategy, "optimized_param_id", None) is not None:
            strategy.optimized_param_id = dict(strategy.model.named_parameters())
        compat.follow_importances(strategy, after)
