"""The settings of a comparison by dataset: short ones as the default, and those of the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aanets_plugin.config import EXEMPLARS_PER_CLASS
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.settings import Training

MOST_PHASES = 5
"""The largest default number of phases after the first one: the smallest N of the paper."""


@dataclass(frozen=True)
class Setting:
    """The settings of a comparison on one dataset.

    The learning rate schedule is that of the method: a cosine for PODNet, steps for the others.
    """

    backbone: str
    training: Training
    memory_per_class: int = EXEMPLARS_PER_CLASS
    base_classes: int | None = None
    """Classes of the first phase. Default: half of them, rounded up."""

    def with_epochs(self, epochs: int | None, base_epochs: int | None = None) -> Setting:
        """The same with other epochs. `base_epochs` is scaled in proportion unless given."""
        training = self.training
        epochs = training.epochs if epochs is None else epochs
        if base_epochs is None:
            base_epochs = round(epochs * training.epochs_of(0) / training.epochs)
        return replace(self, training=replace(training, epochs=epochs, base_epochs=base_epochs))

    def split(self, classes: int, base_classes: int | None, phases: int | None) -> tuple[int, int]:
        """The classes of the first phase and the number of later phases, with defaults for None.

        Example:
            >>> DATASET_SETTINGS["cifar100"].split(100, None, None)
            (50, 5)
            >>> DATASET_SETTINGS["folder"].split(37, None, None)
            (19, 3)
        """
        if base_classes is None:
            base_classes = self.base_classes
        if base_classes is None:
            base_classes = (classes + 1) // 2
        if phases is None:
            rest = max(1, classes - base_classes)
            phases = max(n for n in range(1, MOST_PHASES + 1) if rest % n == 0)
        return base_classes, phases


_SHORT = Training(epochs=30, base_epochs=60, workers=4)
# Digits take about a minute on two cores. The others train for fewer epochs than the paper.
DATASET_SETTINGS = {
    "digits": Setting(
        "resnet8",
        Training(epochs=15, base_epochs=20, batch_size=32, lr=0.05),
        memory_per_class=10,
        base_classes=4,
    ),
    "cifar100": Setting("resnet32", Training(epochs=40, base_epochs=80)),
    "imagenet-subset": Setting("resnet18_open", _SHORT),
    "imagenet": Setting("resnet18_open", _SHORT),
    "folder": Setting("resnet18_open", replace(_SHORT, batch_size=64)),
}

# Section 4 of the paper: the architectures, "160 (90) epochs in each phase, and the learning rates
# are divided by 10 after 80 (30) and then after 120 (60) epochs", batches of 128, 20 exemplars per
# class, half of the classes first. The ResNet-18 without its last ReLU is in the authors' code. The
# paper has no separate numbers for PODNet. Its authors train 160 epochs with a cosine on CIFAR-100;
# we do not have their ImageNet settings, so PODNet gets the paper's 90 epochs with a cosine there.
# The number of workers is our choice. We do not use the paper's γ2 = 1e-8 for α, because α hardly
# moves with it; --alpha-lr sets it.
_IMAGENET = Setting(
    "resnet18_open",
    Training(epochs=90, base_epochs=90, milestones=(30 / 90, 60 / 90), workers=4),
)
PAPER = {
    "cifar100": Setting("resnet32", Training(epochs=160, base_epochs=160)),
    "imagenet-subset": _IMAGENET,
    "imagenet": _IMAGENET,
}
PRESETS = {"paper": PAPER}


def setting(dataset: str, preset: str | None = None) -> Setting:
    """The settings for `dataset`: the defaults, or those of a preset."""
    settings = DATASET_SETTINGS if preset is None else PRESETS.get(preset, {})
    if dataset not in settings:
        raise ConfigurationError(
            f"preset={preset!r}: has no settings for dataset={dataset!r}, only for "
            f"{', '.join(settings) or 'none'}. Use one of these datasets, or leave out the preset."
        )
    return settings[dataset]
