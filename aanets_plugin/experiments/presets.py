"""What a comparison does when nothing else is said, for each dataset; and the paper's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.settings import Training

MOST_PHASES = 5
"""After the first one, by default: the smallest N of the paper."""


@dataclass(frozen=True)
class Setting:
    """The settings of a comparison on one dataset.

    The schedule is the method's own: PODNet's falls along a cosine, the others' to a tenth at the
    `milestones`. Momentum and weight decay are those of `Training`, the paper's in every setting.
    """

    backbone: str
    epochs: int
    base_epochs: int
    batch_size: int = 128
    lr: float = 0.1
    milestones: tuple[float, ...] = (0.5, 0.75)
    """As shares of the epochs of a phase."""
    memory_per_class: int = 20
    base_classes: int | None = None
    """None: half of the classes, one more where their number is odd."""
    workers: int = 0

    def with_epochs(self, epochs: int | None, base_epochs: int | None = None) -> Setting:
        """Other epochs; those of the first phase follow in proportion unless they are given."""
        epochs = self.epochs if epochs is None else epochs
        if base_epochs is None:
            base_epochs = round(epochs * self.base_epochs / self.epochs)
        return replace(self, epochs=epochs, base_epochs=base_epochs)

    def split(self, classes: int, base_classes: int | None, phases: int | None) -> tuple[int, int]:
        """Classes of the first phase and the number of phases after it, where not given.

        >>> DEFAULTS["cifar100"].split(100, None, None)
        (50, 5)
        >>> DEFAULTS["folder"].split(37, None, None)
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

    def training(self) -> Training:
        return Training(
            epochs=self.epochs,
            base_epochs=self.base_epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            milestones=self.milestones,
            workers=self.workers,
        )


# Digits: about a minute on two cores. The others: shorter than the paper's, the same otherwise.
DEFAULTS = {
    "digits": Setting(
        "resnet8",
        epochs=15,
        base_epochs=20,
        batch_size=32,
        lr=0.05,
        memory_per_class=10,
        base_classes=4,
    ),
    "cifar100": Setting("resnet32", epochs=40, base_epochs=80),
    "imagenet-subset": Setting("resnet18_open", epochs=30, base_epochs=60, workers=4),
    "imagenet": Setting("resnet18_open", epochs=30, base_epochs=60, workers=4),
    "folder": Setting("resnet18_open", epochs=30, base_epochs=60, batch_size=64, workers=4),
}

# Section 4 of the paper: the architectures, "160 (90) epochs in each phase, and the learning rates
# are divided by 10 after 80 (30) and then after 120 (60) epochs", batches of 128, 20 exemplars per
# class, half of the classes first. The authors' code has the open ReLU of ResNet-18. Of PODNet the
# paper gives no numbers of its own; its authors train 160 epochs along a cosine on CIFAR-100. How
# it is trained on ImageNet we do not have: there it gets the paper's 90 epochs and its own cosine.
# Where the paper is silent (workers) the numbers are ours. γ2 = 1e-8 for α is not taken over, since
# it leaves α where it is; --alpha-lr sets it.
_IMAGENET = Setting(
    "resnet18_open", epochs=90, base_epochs=90, milestones=(30 / 90, 60 / 90), workers=4
)
PAPER = {
    "cifar100": Setting("resnet32", epochs=160, base_epochs=160),
    "imagenet-subset": _IMAGENET,
    "imagenet": _IMAGENET,
}
PRESETS = {"paper": PAPER}


def setting(dataset: str, preset: str | None = None) -> Setting:
    """The settings for `dataset`: the defaults, or those of a preset."""
    table = DEFAULTS if preset is None else PRESETS.get(preset, {})
    if dataset not in table:
        have = f"has settings for {', '.join(table)}" if table else "does not exist"
        raise ConfigurationError(
            f"preset={preset!r} and dataset={dataset!r}: the preset {have}; take one of these, or "
            f"leave the preset out"
        )
    return table[dataset]
