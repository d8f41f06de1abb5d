"""The settings of a comparison by dataset: short ones as the default, and those of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aanets_plugin.baselines.method import Method
from aanets_plugin.config import EXEMPLARS_PER_CLASS
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.settings import Training

MOST_PHASES = 5
"""The largest default number of phases after the first one: the smallest N of the paper."""


@dataclass(frozen=True)
class Setting:
    """The settings of a comparison on one dataset."""

    backbone: str
    training: Training
    memory_per_class: int = EXEMPLARS_PER_CLASS
    hyperparameters: dict[str, float] = field(default_factory=dict)
    """Hyperparameters for methods that have them, in place of their defaults."""
    color_jitter: bool = False
    """Whether the brightness of training images varies; see `load_data`."""

    def configured(self, method: Method) -> Method:
        """`method` with the hyperparameters of this setting, except those that were changed.

        Examples:
            >>> from aanets_plugin.baselines import LUCIR
            >>> setting("imagenet", "paper").configured(LUCIR()).base
            10.0
        """
        usual = type(method)().settings()
        now = method.settings()
        values = self.hyperparameters.items()
        return replace(method, **{k: v for k, v in values if k in now and now[k] == usual[k]})

    def with_epochs(self, epochs: int | None, base_epochs: int | None = None) -> Setting:
        """The same with other epochs. `base_epochs` is scaled in proportion unless given."""
        training = self.training
        epochs = training.epochs if epochs is None else epochs
        if base_epochs is None:
            base_epochs = round(epochs * training.epochs_of(0) / training.epochs)
        return replace(self, training=replace(training, epochs=epochs, base_epochs=base_epochs))


def default_split(classes: int, base_classes: int | None, phases: int | None) -> tuple[int, int]:
    """The classes of the first phase and the number of later phases.

    Default: half of the classes, rounded up, and up to five phases of equal size.

    Examples:
        >>> default_split(100, None, None), default_split(37, None, None)
        ((50, 5), (19, 3))
    """
    if base_classes is None:
        base_classes = (classes + 1) // 2
    if phases is None:
        rest = max(1, classes - base_classes)
        phases = max(n for n in range(1, MOST_PHASES + 1) if rest % n == 0)
    return base_classes, phases


_SHORT = Training(epochs=30, base_epochs=60, workers=4)
# Digits take about a minute on two cores. The others train for fewer epochs than the paper.
DATASET_SETTINGS = {
    # The paper's protocol for ten classes: half of them first, then five phases; few exemplars.
    "digits": Setting(
        "resnet8",
        Training(epochs=15, base_epochs=20, batch_size=32, lr=0.05),
        memory_per_class=6,
    ),
    "cifar100": Setting("resnet32", Training(epochs=40, base_epochs=80)),
    "imagenet-subset": Setting("resnet18_open", _SHORT),
    "imagenet": Setting("resnet18_open", _SHORT),
    "folder": Setting("resnet18_open", replace(_SHORT, batch_size=64)),
}

# Where each value comes from is in docs/reproduce/recipes.md. On ImageNet-Subset the recipe is that
# of the README of the authors' code, which replaced the paper's on ImageNet (learning rate 0.1,
# divided by 10 after 30 and 60 epochs). On ImageNet the authors refer to the settings of the
# methods' authors. The number of workers is our choice. We do not use the paper's γ2 = 1e-8 for α,
# because α hardly moves with it; --alpha-lr sets it.
_CIFAR = Setting("resnet32", Training(epochs=160, base_epochs=160))
_IMAGENET = Setting(
    "resnet18_open",
    Training(
        epochs=90, base_epochs=90, weight_decay=1e-4, milestones=(30 / 90, 60 / 90), workers=4
    ),
    hyperparameters={"base": 10.0},
)
_SUBSET = replace(
    _IMAGENET,
    training=replace(_IMAGENET.training, lr=0.05, weight_decay=5e-4, schedule="cosine"),
    color_jitter=True,
)
_PODNET = replace(
    _SUBSET,
    training=replace(_SUBSET.training, batch_size=64, schedule=None),
    hyperparameters={"spatial_weight": 8.0, "flat_weight": 10.0, "finetune_lr": 0.01},
)
PAPER = {"cifar100": _CIFAR, "imagenet-subset": _SUBSET, "imagenet": _IMAGENET}
"""The settings of iCaRL, LUCIR and Mnemonics."""
PAPER_PODNET = {
    "cifar100": replace(_CIFAR, color_jitter=True),
    "imagenet-subset": _PODNET,
    "imagenet": replace(_PODNET, training=replace(_PODNET.training, weight_decay=1e-4)),
}
PRESETS = {"paper": PAPER}


def setting(dataset: str, preset: str | None = None, method: Method | None = None) -> Setting:
    """The settings for `dataset`: the defaults, or those of a preset for `method`.

    Without a method, a preset has the settings of LUCIR.
    """
    settings = DATASET_SETTINGS if preset is None else PRESETS.get(preset, {})
    if preset == "paper" and method is not None and method.name == "podnet":
        settings = PAPER_PODNET
    if dataset not in settings:
        raise ConfigurationError(
            f"preset={preset!r}: has no settings for dataset={dataset!r}, only for "
            f"{', '.join(settings) or 'none'}. Use one of these datasets, or leave out the preset."
        )
    return settings[dataset]
