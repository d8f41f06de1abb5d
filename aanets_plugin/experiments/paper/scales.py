"""Scale: the setting that all runs of a table share, the paper's or a small one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aanets_plugin.baselines.method import Method
from aanets_plugin.config import EXEMPLARS_PER_CLASS
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.paper import numbers
from aanets_plugin.experiments.presets import DATASET_SETTINGS, setting
from aanets_plugin.experiments.settings import Training

SCALES = ("small", "paper")


@dataclass(frozen=True)
class Scale:
    """The setting of all runs of a table on one dataset."""

    dataset: str
    name: str
    backbone: str
    training: Training
    exemplars: int = EXEMPLARS_PER_CLASS
    """Of each class."""
    phases: tuple[int, ...] = numbers.PHASES
    """The values of N."""
    images_per_class: int | None = None
    precision: str = "no"
    color_jitter: bool = False
    strict: dict[str, int] | None = None
    """Exemplars under the strict budget: of Table 1, and of the supplement. None: by
    `MemoryBudget`."""

    def configured(self, method: Method) -> tuple[Scale, Method]:
        """The scale for a method, and the method with the hyperparameters of the scale.

        Examples:
            >>> from aanets_plugin.baselines import PODNet
            >>> scale_of("imagenet-subset", "paper").configured(PODNet())[0].training.batch_size
            64
        """
        if self.name != "paper":
            return self, method
        chosen = setting(self.dataset, "paper", method)
        own = replace(self, training=chosen.training, color_jitter=chosen.color_jitter)
        return own, chosen.configured(method)

    def increments(self, classes: int, phases: int, *, equal: bool = False) -> tuple[int, ...]:
        """The new classes of each phase: half of them first and then N phases, or N equal phases.

        If N does not divide the second half, the first phase has the fewest classes less.

        Examples:
            >>> scale_of("cifar100", "paper").increments(100, 5)
            (50, 10, 10, 10, 10, 10)
            >>> scale_of("digits", "small").increments(10, 2)
            (4, 3, 3)
            >>> scale_of("digits", "small").increments(10, 2, equal=True)
            (5, 5)
        """
        if equal:
            if classes % phases:
                raise ConfigurationError(
                    f"phases {phases}: cannot be equal phases of {classes} classes. Use one of "
                    f"{_listed(n for n in range(1, classes + 1) if classes % n == 0)}."
                )
            return (classes // phases,) * phases
        for base in range(classes // 2, 0, -1):
            if (classes - base) % phases == 0:
                return (base, *[(classes - base) // phases] * phases)
        raise ConfigurationError(
            f"phases {phases}: must be at most {classes - 1}, one class in each phase after the "
            f"first."
        )


def scale_of(dataset: str, name: str | None = None) -> Scale:
    """The scale `name` of a dataset. Default: "paper", or "small" if the paper has no such dataset.

    "small" is on CIFAR-100 the setting of benchmarks/accuracy.md, on the others that of `aanets
    run`, shorter on digits.
    """
    if dataset not in _SMALL:
        raise ConfigurationError(
            f"dataset {dataset!r}: the tables are of {', '.join(_SMALL)}. For other images use "
            f"aanets run."
        )
    if name is None:
        name = "paper" if dataset in numbers.STRICT else "small"
    if name == "small":
        return _SMALL[dataset]
    if name != "paper" or dataset not in numbers.STRICT:
        raise ConfigurationError(
            f"scale {name!r} of dataset {dataset!r}: must be one of {', '.join(SCALES)}, and the "
            f"paper has no {dataset}. Use --scale small."
        )
    chosen = setting(dataset, "paper")
    of_table_1 = numbers.STRICT_TABLE_1.get(dataset, numbers.STRICT[dataset])
    return Scale(
        dataset,
        "paper",
        chosen.backbone,
        chosen.training,
        chosen.memory_per_class,
        strict={"1": of_table_1, "supplement": numbers.STRICT[dataset]},
    )


def _short(dataset: str) -> Scale:
    chosen = DATASET_SETTINGS[dataset]
    return Scale(dataset, "small", chosen.backbone, chosen.training, chosen.memory_per_class)


def _listed(values: object) -> str:
    return ", ".join(map(str, values))  # type: ignore[call-overload]


_CIFAR_SMALL = Training(epochs=5, base_epochs=30, batch_size=64, schedule="cosine")
_SMALL = {
    # The images are so small that the parameters of AANets would take all exemplars. The strict
    # rows keep the paper's part of them instead: 14 of 20, and 13 of 20.
    "digits": Scale(
        "digits",
        "small",
        "resnet8",
        replace(_CIFAR_SMALL, epochs=3, base_epochs=6, batch_size=32, lr=0.05),
        exemplars=10,
        phases=(2, 5),
        images_per_class=40,
        strict={"1": 7, "supplement": 6},
    ),
    "cifar100": Scale(
        "cifar100", "small", "resnet20", _CIFAR_SMALL, images_per_class=200, precision="bf16"
    ),
    "imagenet-subset": _short("imagenet-subset"),
    "imagenet": _short("imagenet"),
}
