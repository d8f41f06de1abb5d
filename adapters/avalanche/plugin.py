"""AANetPlugin: an Avalanche strategy becomes its AANets version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import Tensor, nn

from aanets_plugin.alpha_gradient import LossFunction, unwrapped
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import DEFAULTS, EXEMPLARS_PER_CLASS, AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.levels import levels
from aanets_plugin.scaling import scaled_layers

from ..optimizer import follow_parameters, spare_decay
from . import compat
from .balanced import BalancedData
from .losses import default_loss
from .scratch import add_stable_side, stable_state
from .support import check_experience, check_strategy


class AANetPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Converts the strategy's model and learns α; every experience is a phase.

    The first experience trains θ_base on one branch. When the strategy is done with it the base is
    frozen and the stable branches appear; after each epoch of the later experiences α learns on
    class-balanced data. Model, optimizer and the other plugins are used as they are, and the user's
    parameter groups are kept. Weight decay does not act on φ.

    Strategies that start every experience from scratch (GDumb, FromScratchTraining) start the
    plastic branches and the head anew; the stable side stays that of the first experience.
    JointTraining has a single experience, so that it trains θ_base and nothing else unless
    `base_phase=False`. In an online stream α learns when the last part of an experience is done.

    Args:
        blocks, stem, stages, alpha: as in `convert_to_aanet`; not used for a model that is
            converted already.
        lr, momentum, normalize, base_phase, update_base, schedule, max_batches: as in
            `BilevelStrategy`. `base_phase=False` is for a model that is trained already.
        loss_fn: `loss_fn(model, batch)` gives the loss of a batch (x, y, task label) on the CPU.
            Default: cross-entropy on the class logits; for SCR its contrastive loss.
        storage_policy: exemplars of the old classes for α. Default: the memory that the strategy
            has, or a few exemplars kept for α alone. It is filled here unless another plugin, or
            the strategy, has the same one.
        per_class: at most so many samples of each class for α, and so many exemplars where they
            are kept here.
        batch_size: of the passes over them; by default the strategy's `train_mb_size`. It changes
            speed and memory only.

    Example:
        >>> plugin = AANetPlugin()
        >>> strategy = Replay(model=model, optimizer=optimizer, mem_size=2000, plugins=[plugin])
        >>> for experience in benchmark.train_stream:
        ...     strategy.train(experience)
        >>> plot_alpha(plugin.bilevel.history, "alpha.png")

    After `maybe_load_checkpoint` the plugin is the one in the strategy: `AANetPlugin.of(strategy)`.
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
        official: bool = DEFAULTS.official,
        schedule: Callable[[int], float] | None = DEFAULTS.schedule,
        update_base: bool = DEFAULTS.update_base,
        max_batches: int | None = DEFAULTS.max_batches,
        per_class: int = EXEMPLARS_PER_CLASS,
        loss_fn: LossFunction | None = None,
        base_phase: bool = True,
        storage_policy: ExemplarsBuffer | None = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = dict(
            blocks=blocks,
            stem=stem,
            stages=stages,
            alpha=alpha,
            lr=lr,
            momentum=momentum,
            normalize=normalize,
            official=official,
            schedule=schedule,
            update_base=update_base,
            max_batches=max_batches,
            per_class=per_class,
        )
        self.config = AANetConfig(**options)
        self.base_phase = base_phase
        self.loss_fn = loss_fn
        self.balanced = BalancedData(storage_policy, per_class, batch_size)
        self._bilevel: BilevelStrategy | None = None
        self._parts_left = 0
        self._phi: list[nn.Parameter] = []
        self._stable_state: dict[str, Tensor] | None = None
        self._restore_groups: Callable[[], None] | None = None

    @property
    def bilevel(self) -> BilevelStrategy:
        """Phases, updates and history of α; there is one as soon as training has begun."""
        if self._bilevel is None:
            raise ConfigurationError(
                "AANetPlugin has no history before training begins. After a checkpoint was loaded "
                "the plugin is another object: AANetPlugin.of(strategy)."
            )
        return self._bilevel

    @classmethod
    def of(cls, strategy: Any) -> AANetPlugin:
        """The AANetPlugin of a strategy."""
        for plugin in strategy.plugins:
            if isinstance(plugin, cls):
                return plugin
        raise ConfigurationError(
            f"{type(strategy).__name__} has no AANetPlugin; add one: plugins=[AANetPlugin()]."
        )

    # -- phases ----------------------------------------------------------------------------------

    def before_training(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Convert the model before anybody copies it or takes its parameters."""
        check_strategy(strategy)
        compat.prepare(strategy)  # every time: a resumed run is another process
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
        """Begin the phase: the last callback before the optimizer is brought up to date."""
        if not self._begins(strategy.experience):
            return
        before = dict(self.bilevel.model.named_parameters())
        if self.bilevel.in_phase:  # one call of train for several experiences
            self.bilevel.end_phase()
        self._follow_model(unwrapped(strategy.model))
        self.bilevel.begin_phase()
        self._parameters_changed(strategy, before)
        self._phi = [layer.phi for layer in scaled_layers(self.bilevel.model)]

    def after_training_epoch(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """One update of α (Eq. 8)."""
        if not self._ends:
            return
        workers, phase = kwargs.get("num_workers", 0), self.bilevel.phase_index
        self.bilevel.after_epoch(lambda: self.balanced.loader(strategy, phase, workers))

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        if self._ends:
            self.balanced.experience_ended(strategy)

    def after_training(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """End the phase, when every plugin is done with the network as it was trained.

        Parameters appear here, between experiences, as Avalanche's plugins expect them to.
        """
        if self.bilevel.in_phase and self._ends:
            before = dict(self.bilevel.model.named_parameters())
            self.bilevel.end_phase()
            self._parameters_changed(strategy, before)

    def _begins(self, experience: Any) -> bool:
        """Whether an experience begins, and not a later part of one, in an online stream.

        The parts are counted: Avalanche marks the last one only if it is smaller than the others.
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
        """Go on with a model that the strategy put in the place of the one that was trained."""
        old = self.bilevel.model
        if model is old:
            return
        if not levels(model):
            raise ConfigurationError(
                f"the strategy has another model now, a {type(model).__name__} without adaptive "
                f"levels. An AANetPlugin belongs to one strategy: make one for each."
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

    # -- no weight decay on φ --------------------------------------------------------------------

    def before_update(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        if self._phi:
            self._restore_groups = spare_decay(strategy.optimizer, self._phi)

    def after_update(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        if self._restore_groups is not None:
            self._restore_groups()
            self._restore_groups = None
