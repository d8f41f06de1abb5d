"""Datasets by name as Continuum scenarios, with the paper's transforms, class order and splits.

    data = load_data("cifar100", "data")
    train, test = scenarios(data, phases=5)  # 50 classes first, then 5 times 10

An invalid name, path, file or split raises a `ConfigurationError` here, before any training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from continuum.datasets import InMemoryDataset, _ContinuumDataset
from continuum.scenarios import ClassIncremental
from continuum.tasks import TaskType
from torchvision import transforms

from aanets_plugin.checks import integer, positive, shorten
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.readers import (
    CIFAR100_CLASSES,
    SUBSETS,
    Samples,
    check_folder,
    read_cifar100,
    read_digits,
    read_image_tree,
    rows_by_class,
)
from aanets_plugin.experiments.splits import (
    check_increments,
    check_split,
    paper_order,
    random_state,
)

DATASETS = ("digits", "cifar100", "imagenet-subset", "imagenet", "folder")

IMAGE_SIZE = 224
"""The default size of the images of ImageNet and folder datasets."""

_SIZES = {"digits": 8, "cifar100": 32}
_STATISTICS = {
    # Mean and standard deviation of all pixels, the same for the three channels.
    "digits": ((0.3053,) * 3, (0.3759,) * 3),
    # As in the authors' code.
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


@dataclass(frozen=True)
class Data:
    """Continuum's datasets for training and testing, with labels from 0 to `classes` - 1."""

    name: str
    train: _ContinuumDataset
    test: _ContinuumDataset
    train_transforms: list[Any]
    """torchvision transforms from an image to a normalised tensor."""
    test_transforms: list[Any]
    input_shape: tuple[int, int, int]
    """Channels, height and width after the transforms."""
    classes: int
    class_names: tuple[str, ...] = ()
    """The names of the classes by label; empty if they are not known."""


def load_data(
    name: str,
    path: str | Path | None = None,
    *,
    seed: int = 0,
    per_class: int | None = None,
    image_size: int | None = None,
    subset: str | None = None,
    color_jitter: bool = False,
) -> Data:
    """Read the dataset `name` from the folder `path` and check it.

    Args:
        name: one of `DATASETS`:

            - "digits": scikit-learn's 8x8 digits as RGB images, half of each class for training.
              It needs no path. Training images are shifted by up to one pixel; they are not
              flipped, because a flipped digit is not a digit.
            - "cifar100": the folder has `train.npz` and `test.npz`, each with `x` (uint8
              [N, 32, 32, 3]) and `y` (labels from 0). Otherwise it is the root of torchvision's
              CIFAR100, which is downloaded if it is missing.
            - "imagenet": the folder has `train/` and `val/` (or `test/`), each with one folder of
              images for each of the 1000 classes.
            - "imagenet-subset": the same with 100 classes. If the folder has 1000, `subset` says
              which of them are used.
            - "folder": the same with any number of classes.
        path: the folder of the dataset.
        seed: the seed of the random choices: the halves of the digits, the `per_class` images.
        per_class: the largest number of training images of each class. With the same seed, a
            larger number includes the images of a smaller one. All test images are used.
        image_size: height and width of the network's input for image folders. Default: 224.
        subset: the 100 classes of "imagenet-subset". "lucir" (default): the first 100 of
            `paper_order`. "podnet": the first 100 in alphabetical order of their ids, as in the
            lists of PODNet's authors. They have nine classes in common.
        color_jitter: change the brightness of each training image by a random factor between
            1 - 63/255 and 1 + 63/255, as PODNet's authors do.
    """
    if name not in DATASETS:
        raise ConfigurationError(
            f"dataset={name!r}: must be one of {', '.join(DATASETS)}. Use 'folder' for your own "
            f"images."
        )
    random = random_state(seed)
    if per_class is not None:
        per_class = positive(per_class, "per_class")
    if image_size is not None:
        image_size = positive(image_size, "image_size")
    if name in _SIZES and image_size is not None:
        raise ConfigurationError(
            f"image_size={image_size}: cannot be set for dataset={name!r}, whose images have "
            f"{_SIZES[name]} pixels. Leave out image_size."
        )
    if subset is not None and (name != "imagenet-subset" or subset not in SUBSETS):
        raise ConfigurationError(
            f"subset={subset!r} for dataset={name!r}: must be one of {', '.join(SUBSETS)}, and for "
            f"dataset='imagenet-subset' only."
        )
    if name == "digits":
        if path is not None:
            raise ConfigurationError(
                f"path={str(path)!r}: cannot be set for dataset='digits', which comes with "
                f"scikit-learn. Leave out path, or use another dataset."
            )
        train, test = read_digits(random)
    else:
        root = check_folder(name, path)
        train, test = (
            read_cifar100(root) if name == "cifar100" else read_image_tree(name, root, subset)
        )

    classes = len(np.unique(train[1]))
    if per_class is not None:
        # A new generator, so that the choice does not depend on how the dataset was read.
        kept = _first_of_each_class(train[1], per_class, random_state(seed))
        train = train[0][kept], train[1][kept]
    kind = TaskType.IMAGE_ARRAY if name in _SIZES else TaskType.IMAGE_PATH
    size = _SIZES.get(name) or image_size or IMAGE_SIZE
    train_transforms, test_transforms = _transforms(name, size)
    if color_jitter:
        # Before the image becomes a normalised tensor.
        train_transforms.insert(-2, transforms.ColorJitter(brightness=63 / 255))
    return Data(
        name=name,
        train=InMemoryDataset(*train, data_type=kind, train=True),
        test=InMemoryDataset(*test, data_type=kind, train=False),
        train_transforms=train_transforms,
        test_transforms=test_transforms,
        input_shape=(3, size, size),
        classes=classes,
        class_names=_class_names(name, train, classes, path),
    )


def scenarios(
    data: Data,
    *,
    base_classes: int | None = None,
    phases: int | None = None,
    order: Sequence[int] | None = None,
    increments: Sequence[int] | None = None,
) -> tuple[ClassIncremental, ClassIncremental]:
    """Continuum's scenarios for training and testing, with the same classes in the same phases.

    Args:
        data: the dataset, as `load_data` returns it.
        base_classes: the number of classes in the first phase; see `check_split`.
        phases: the number of phases after it.
        order: all classes in the order in which they are learned. Default: `paper_order`. As
            always in Continuum, the label of a class in a scenario is its position in this order.
        increments: instead of `base_classes` and `phases`, the number of new classes in each phase.

    Example::

        train, test = scenarios(load_data("digits"), increments=[4, 1, 2, 3])
    """
    if (phases is None) == (increments is None) or (base_classes is not None and increments):
        raise ConfigurationError(
            f"phases={phases}, base_classes={base_classes}, increments={increments}: pass either "
            f"phases (and base_classes), or increments."
        )
    if increments is not None:
        sizes = check_increments(increments, data.classes)
    else:
        assert phases is not None
        sizes = check_split(data.classes, base_classes=base_classes, phases=phases)
    class_order = paper_order(data.classes) if order is None else _checked_order(order, data)
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


def _class_names(
    name: str, train: Samples, classes: int, path: str | Path | None
) -> tuple[str, ...]:
    if name == "digits":
        return tuple(map(str, range(classes)))
    if name == "cifar100":
        names = tuple(CIFAR100_CLASSES.split())
        return names if classes == len(names) else ()
    root = Path(path or "").expanduser() / "train"
    labels = dict(zip(train[1].tolist(), train[0], strict=True))  # an image of each class
    return tuple(Path(labels[label]).relative_to(root).parts[0] for label in range(classes))


def _transforms(name: str, size: int) -> tuple[list[Any], list[Any]]:
    mean, std = _STATISTICS.get(name, _STATISTICS["imagenet"])
    end = [transforms.ToTensor(), transforms.Normalize(mean, std)]
    if name == "digits":
        return [transforms.RandomCrop(size, padding=1), *end], end
    flip = transforms.RandomHorizontalFlip()
    if name == "cifar100":
        return [transforms.RandomCrop(size, padding=4), flip, *end], end
    # Resize to 256 before cropping 224, and in proportion for other sizes.
    shorter_side = round(size * 256 / 224)
    return (
        [transforms.RandomResizedCrop(size), flip, *end],
        [transforms.Resize(shorter_side), transforms.CenterCrop(size), *end],
    )


def _checked_order(order: Sequence[int], data: Data) -> list[int]:
    labels = [integer(label) for label in order]
    missing = sorted(set(range(data.classes)) - set(labels))
    if missing or len(labels) > data.classes:
        raise ConfigurationError(
            f"order={shorten(order)}: must have each of the {data.classes} classes of {data.name} "
            f"once, from 0 to {data.classes - 1} (missing: {shorten(missing) or 'none'}). Leave it "
            f"out for the paper's order."
        )
    return [label for label in labels if label is not None]


def _first_of_each_class(y: np.ndarray, count: int, random: np.random.RandomState) -> np.ndarray:
    rows = [random.permutation(rows)[:count] for rows in rows_by_class(y)]
    return np.sort(np.concatenate(rows))
