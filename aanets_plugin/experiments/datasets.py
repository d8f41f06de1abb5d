"""Datasets by name, as Continuum reads them, with the paper's transforms, class order and splits.

    data = load_data("cifar100", "data")
    train, test = scenarios(data, phases=5)  # 50 classes first, then 5 times 10

Whatever is wrong with a name, a path, a file or a split is a `ConfigurationError` from here, before
any training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from continuum.datasets import InMemoryDataset, _ContinuumDataset
from continuum.scenarios import ClassIncremental
from continuum.tasks import TaskType
from torchvision import transforms

from aanets_plugin.checks import integer, positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.readers import (
    few,
    folder_of,
    read_cifar100,
    read_digits,
    read_image_tree,
    rows_of_each_class,
)
from aanets_plugin.experiments.splits import check_split, paper_order, random_state

DATASETS = ("digits", "cifar100", "imagenet-subset", "imagenet", "folder")

_SIZES = {"digits": 8, "cifar100": 32}
_STATISTICS = {
    # Mean and standard deviation of all pixels of all digits, the same for the three channels.
    "digits": ((0.3053,) * 3, (0.3759,) * 3),
    # As in the official code.
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


@dataclass(frozen=True)
class Data:
    """A dataset for class-incremental learning: both halves, and what a network sees of them.

    Args:
        name: one of `DATASETS`, or your own.
        train: Continuum's dataset for training; its labels are 0 to `classes` - 1.
        test: the same for testing, with the same classes.
        train_transforms: torchvision's transforms from an image to a normalised tensor.
        test_transforms: the same without augmentation.
        input_shape: channels, height and width after the transforms.
        classes: the number of classes.
    """

    name: str
    train: _ContinuumDataset
    test: _ContinuumDataset
    train_transforms: list[Any]
    test_transforms: list[Any]
    input_shape: tuple[int, int, int]
    classes: int


def load_data(
    name: str,
    path: str | Path | None = None,
    *,
    seed: int = 0,
    per_class: int | None = None,
    image_size: int | None = None,
) -> Data:
    """The dataset `name`, read from `path` and checked.

    Args:
        name: one of `DATASETS`.
        path: where the dataset is, see below.
        seed: draws the halves of the digits and the `per_class` samples.
        per_class: at most so many training images of each class; more of them with the same seed
            include the fewer. The test images are always all there are.
        image_size: height and width of what the network sees of an image tree, 224 by default.

    - "digits": scikit-learn's 8x8 digits in grey RGB, half of each class for training; no path.
      Training images move by up to one pixel; mirrored, a digit would be no digit any more.
    - "cifar100": `path` has `train.npz` and `test.npz`, each with `x` (uint8 [N, 32, 32, 3]) and
      `y` (labels from 0); or it is torchvision's root, and CIFAR-100 is downloaded if need be.
    - "imagenet": `path` has `train/` and `val/` (or `test/`) with one folder of images for each of
      the 1000 classes.
    - "imagenet-subset": the same with 100 classes. From a tree of the 1000 it takes the first 100
      of `paper_order`, which are those that LUCIR's authors drew; the paper follows LUCIR and
      PODNet here, whose own list is another one.
    - "folder": the same with any classes.
    """
    if name not in DATASETS:
        raise ConfigurationError(
            f"there is no dataset {name!r}; expected one of {', '.join(DATASETS)}; for images of "
            'your own take "folder"'
        )
    random = random_state(seed)
    if per_class is not None:
        per_class = positive(per_class, "per_class")
    if image_size is not None:
        image_size = positive(image_size, "image_size")
    if name in _SIZES and image_size is not None:
        raise ConfigurationError(
            f"image_size={image_size} was given for {name}, whose images are {_SIZES[name]} pixels "
            "wide and stay so; leave image_size out"
        )
    if name == "digits":
        if path is not None:
            raise ConfigurationError(
                f"path={str(path)!r} was given for digits, which come with scikit-learn; leave "
                "path out, or name the dataset that is there"
            )
        train, test = read_digits(random)
    else:
        root = folder_of(name, path)
        train, test = read_cifar100(root) if name == "cifar100" else read_image_tree(name, root)

    classes = len(np.unique(train[1]))
    if per_class is not None:
        # A generator of its own, so that the draw does not depend on how the dataset was read.
        kept = _first_of_each_class(train[1], per_class, random_state(seed))
        train = train[0][kept], train[1][kept]
    kind = TaskType.IMAGE_ARRAY if name in _SIZES else TaskType.IMAGE_PATH
    size = _SIZES.get(name) or image_size or 224
    train_transforms, test_transforms = _transforms(name, size)
    return Data(
        name=name,
        train=InMemoryDataset(*train, data_type=kind, train=True),
        test=InMemoryDataset(*test, data_type=kind, train=False),
        train_transforms=train_transforms,
        test_transforms=test_transforms,
        input_shape=(3, size, size),
        classes=classes,
    )


def scenarios(
    data: Data,
    *,
    base_classes: int | None = None,
    phases: int,
    order: Sequence[int] | None = None,
) -> tuple[ClassIncremental, ClassIncremental]:
    """Continuum's scenarios for training and testing, with the same classes in the same phases.

    `base_classes` and `phases` are those of `check_split`. `order` has every class once, first come
    first learned; by default it is `paper_order`. In the scenarios a class's label is its place in
    the order, as always in Continuum.
    """
    sizes = check_split(data.classes, base_classes=base_classes, phases=phases)
    if order is None:
        class_order = paper_order(data.name, data.classes)
    else:
        class_order = _checked_order(order, data)
    train, test = (
        ClassIncremental(
            dataset, increment=list(sizes), transformations=chain, class_order=list(class_order)
        )
        for dataset, chain in (
            (data.train, data.train_transforms),
            (data.test, data.test_transforms),
        )
    )
    return train, test


def _transforms(name: str, size: int) -> tuple[list[Any], list[Any]]:
    mean, std = _STATISTICS.get(name, _STATISTICS["imagenet"])
    end = [transforms.ToTensor(), transforms.Normalize(mean, std)]
    if name == "digits":
        return [transforms.RandomCrop(size, padding=1), *end], end
    flip = transforms.RandomHorizontalFlip()
    if name == "cifar100":
        return [transforms.RandomCrop(size, padding=4), flip, *end], end
    # 256 for 224, and in proportion for other sizes.
    shorter_side = round(size * 256 / 224)
    return (
        [transforms.RandomResizedCrop(size), flip, *end],
        [transforms.Resize(shorter_side), transforms.CenterCrop(size), *end],
    )


def _checked_order(order: Sequence[int], data: Data) -> list[int]:
    labels = [integer(label) for label in order]
    known = set(range(data.classes))
    problems = {
        "missing": sorted(known - set(labels)),
        "no class": [
            given for given, label in zip(order, labels, strict=True) if label not in known
        ],
        "more than once": [label for label in known if labels.count(label) > 1],
    }
    if any(problems.values()):
        found = "; ".join(f"{what}: {few(which)}" for what, which in problems.items() if which)
        raise ConfigurationError(
            f"order={few(order)} is no order of the {data.classes} classes of {data.name} "
            f"({found}); expected each of 0 to {data.classes - 1} once; leave it out for the "
            "paper's order"
        )
    return [label for label in labels if label is not None]


def _first_of_each_class(y: np.ndarray, count: int, random: np.random.RandomState) -> np.ndarray:
    rows = [random.permutation(rows)[:count] for rows in rows_of_each_class(y)]
    return np.sort(np.concatenate(rows))
