"""Datasets by name, as Continuum reads them, with the paper's transforms, class order and splits.

    data = load_data("cifar100", "data")
    train, test = scenarios(data, phases=5)  # 50 classes first, then 5 times 10

Whatever is wrong with a name, a path, a file or a split is a `ConfigurationError` from here, before
any training.
"""

from __future__ import annotations

import contextlib
import operator
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from continuum.datasets import InMemoryDataset, _ContinuumDataset
from continuum.scenarios import ClassIncremental
from continuum.tasks import TaskType
from torchvision import transforms
from torchvision.datasets import CIFAR100, ImageFolder

from aanets_plugin.errors import ConfigurationError

__all__ = ["DATASETS", "Data", "check_split", "load_data", "paper_order", "scenarios"]

DATASETS = ("digits", "cifar100", "imagenet-subset", "imagenet", "folder")

_SUBSET_CLASSES, _IMAGENET_CLASSES = 100, 1000
_SIZES = {"digits": 8, "cifar100": 32}
_STATISTICS = {
    # Mean and standard deviation of all pixels of all digits, the same for the three channels.
    "digits": ((0.3053,) * 3, (0.3759,) * 3),
    # As in the official code.
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}

# Samples (images [N, H, W, 3] or paths [N]) and their labels.
_Samples = tuple[np.ndarray, np.ndarray]


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
    random = _random(seed)
    if per_class is not None:
        per_class = _positive(per_class, "per_class", "images to keep of each class")
    if image_size is not None:
        image_size = _positive(image_size, "image_size", "pixels in height and width")
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
        train, test = _digits(random)
    else:
        root = _root(name, path)
        train, test = _cifar100(root) if name == "cifar100" else _image_tree(name, root)

    classes = len(np.unique(train[1]))
    if per_class is not None:
        # A generator of its own, so that the draw does not depend on how the dataset was read.
        kept = _first_of_each_class(train[1], per_class, _random(seed))
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


def check_split(classes: int, *, base_classes: int | None = None, phases: int) -> list[int]:
    """How many classes each phase brings; an error where they cannot be dealt out evenly.

    By default half of the classes come first, as phase 0, and the others in `phases` equal parts:
    the paper's protocol. `base_classes` says how many come first; with 0 there is no large first
    phase, and all classes come in `phases` equal parts.

    >>> check_split(100, phases=5)
    [50, 10, 10, 10, 10, 10]
    >>> check_split(10, base_classes=4, phases=3)
    [4, 2, 2, 2]
    >>> check_split(10, base_classes=0, phases=5)
    [2, 2, 2, 2, 2]
    """
    classes = _positive(classes, "classes", "classes of the dataset")
    phases = _positive(phases, "phases", "phases")
    if base_classes is None:
        if classes % 2:
            base = classes // 2 + 1
            rest = f", for example {base}, with phases one of {_divisors(classes - base)}"
            raise ConfigurationError(
                f"{classes} classes have no half for the first phase; pass base_classes"
                + (rest if classes > base else "=0 with phases=1")
            )
        base_classes = classes // 2
    else:
        number = _integer(base_classes)
        if number is None or not 0 <= number < classes:
            raise ConfigurationError(
                f"base_classes={base_classes!r} of {classes} classes; expected an integer from 0 "
                f"to {classes - 1}; for all classes at once pass base_classes=0 and phases=1"
            )
        base_classes = number
    rest_of_classes = classes - base_classes
    if rest_of_classes % phases:
        after = f"that come after the first {base_classes} of {classes}" if base_classes else ""
        raise ConfigurationError(
            f"phases={phases} does not divide the {rest_of_classes} classes {after}".rstrip()
            + f"; expected one of {_divisors(rest_of_classes)}; pass one of these, or another "
            "base_classes"
        )
    first = [base_classes] if base_classes else []
    return first + [rest_of_classes // phases] * phases


def paper_order(name: str, classes: int, seed: int = 1993) -> list[int]:
    """The order in which the paper learns classes: 0, 1, … shuffled by numpy with the seed 1993.

    The rule is one for all datasets; `name` is there for the error. numpy's global state is neither
    used nor changed.

    >>> paper_order("cifar100", 100)[:5]
    [68, 56, 78, 8, 23]
    """
    order = np.arange(_positive(classes, "classes", f"classes of {name}"))
    _random(seed).shuffle(order)
    return [int(label) for label in order]


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


def _digits(random: np.random.RandomState) -> tuple[_Samples, _Samples]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigurationError(
            f"digits come with scikit-learn, which is not installed ({error}); pip install "
            "scikit-learn, or take another dataset"
        ) from error
    pixels, y = load_digits(return_X_y=True)
    grey = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    x, y = np.repeat(grey, 3, axis=3), y.astype(np.int64)
    in_train = np.zeros(len(y), dtype=bool)
    for rows in _rows_of_each_class(y):
        in_train[random.permutation(rows)[: (len(rows) + 1) // 2]] = True
    return (x[in_train], y[in_train]), (x[~in_train], y[~in_train])


def _cifar100(root: Path) -> tuple[_Samples, _Samples]:
    files = [root / "train.npz", root / "test.npz"]
    found = [file.name for file in files if file.is_file()]
    if len(found) == 1:
        raise ConfigurationError(
            f"path={str(root)!r} has {found[0]} alone; expected train.npz and test.npz; add the "
            "other, or remove this one to have CIFAR-100 downloaded there"
        )
    if not found:
        return _torchvision_cifar100(root)
    train, test = (_read_npz(file) for file in files)
    labels, labels_of_test = (np.unique(y).tolist() for _, y in (train, test))
    _check_same_classes(root, {"train.npz": labels, "test.npz": labels_of_test})
    if labels != list(range(len(labels))):
        raise ConfigurationError(
            f"y in {str(files[0])!r} has the labels {_few(labels)}; expected 0, 1, 2, … without a "
            "gap; number the classes anew, in both files alike"
        )
    return train, test


def _read_npz(file: Path) -> _Samples:
    try:
        archive = np.load(file, allow_pickle=False)
        if not hasattr(archive, "files"):
            raise ValueError("it is a single array")
        with archive:
            names = list(archive.files)
            arrays = {name: archive[name] for name in ("x", "y") if name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(
            f"{str(file)!r} does not read as an npz file of arrays ({error}); write it anew with "
            "numpy.savez(file, x=images, y=labels)"
        ) from error
    if len(arrays) < 2:
        raise ConfigurationError(
            f"{str(file)!r} has the arrays {_few(names)}; expected x and y; write it anew with "
            "numpy.savez(file, x=images, y=labels)"
        )
    x, y = arrays["x"], arrays["y"]
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] != (32, 32, 3):
        raise ConfigurationError(
            f"x in {str(file)!r} is {x.dtype} {list(x.shape)}; expected uint8 [N, 32, 32, 3]; put "
            "the channels last (x.transpose(0, 2, 3, 1)) and store values from 0 to 255 as uint8"
        )
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ConfigurationError(
            f"y in {str(file)!r} is {y.dtype} {list(y.shape)}; expected one integer for each image "
            "of x; write the class numbers, from 0"
        )
    if len(x) != len(y) or not len(y):
        raise ConfigurationError(
            f"{str(file)!r} has {len(x)} images in x and {len(y)} labels in y; expected as many of "
            "one as of the other, and at least one; write both anew from the same source"
        )
    return x, y.astype(np.int64)


def _torchvision_cifar100(root: Path) -> tuple[_Samples, _Samples]:
    # Continuum's own CIFAR100 copies all images each time a scenario asks for them.
    fresh = not root.exists()
    held = _listing(root)
    try:
        splits = [CIFAR100(str(root), train=True, download=True), CIFAR100(str(root), train=False)]
    except (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError) as error:
        if fresh:
            with contextlib.suppress(OSError):
                root.rmdir()
        raise ConfigurationError(
            f"path={str(root)!r} has no intact CIFAR-100 ({held}), and its download from "
            f"{CIFAR100.url} failed ({error}); put {CIFAR100.filename} or the folder "
            f"{CIFAR100.base_folder} from it into {str(root)!r}, or train.npz and test.npz with x "
            "(uint8 [N, 32, 32, 3]) and y"
        ) from error
    train, test = ((split.data, np.array(split.targets, dtype=np.int64)) for split in splits)
    return train, test


def _image_tree(name: str, root: Path) -> tuple[_Samples, _Samples]:
    train = _image_folder(root, ("train",))
    test = _image_folder(root, ("val", "test"))
    _check_same_classes(root, {f"{Path(tree.root).name}/": tree.classes for tree in (train, test)})
    chosen = list(range(len(train.classes)))
    if name == "imagenet-subset" and len(chosen) == _IMAGENET_CLASSES:
        chosen = sorted(paper_order(name, _IMAGENET_CLASSES)[:_SUBSET_CLASSES])
    expected = {"imagenet-subset": _SUBSET_CLASSES, "imagenet": _IMAGENET_CLASSES}.get(name)
    if expected is not None and len(chosen) != expected:
        all_of_them = " or all 1000 of ImageNet" if name == "imagenet-subset" else ""
        raise ConfigurationError(
            f"path={str(root)!r} has {len(chosen)} classes; expected {expected}{all_of_them} for "
            f'{name}; for any other number take the dataset "folder", which is read the same way'
        )
    return _paths_of(train, chosen), _paths_of(test, chosen)


def _image_folder(root: Path, names: Sequence[str]) -> Any:
    folder = next((root / name for name in names if (root / name).is_dir()), None)
    if folder is None:
        raise ConfigurationError(
            f"path={str(root)!r} has no folder {' or '.join(f'{name}/' for name in names)} "
            f"({_listing(root)}); expected train/ and val/ (or test/), each with one folder of "
            "images per class; pass the folder that has both"
        )
    try:
        return ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{str(folder)!r} is no tree of images by class ({error}; {_listing(folder)}); "
            "expected one folder per class with at least one image in each; sort the images into "
            "such folders, and remove those that are empty"
        ) from error


def _paths_of(tree: Any, chosen: Sequence[int]) -> _Samples:
    # Continuum's own ImageFolderDataset cuts paths after 255 bytes and fails beyond ASCII.
    new_label = {label: place for place, label in enumerate(chosen)}
    kept = [(path, new_label[label]) for path, label in tree.samples if label in new_label]
    return np.array([path for path, _ in kept]), np.array([y for _, y in kept], dtype=np.int64)


def _root(name: str, path: str | Path | None) -> Path:
    holds = {
        "cifar100": "train.npz and test.npz, or CIFAR-100 as torchvision keeps it, or nothing yet",
    }.get(name, "train/ and val/ (or test/) with one folder of images per class")
    if path is None:
        raise ConfigurationError(
            f"{name} needs a path and none was given; pass the folder with {holds} (--data in the "
            "examples)"
        )
    root = Path(path).expanduser()
    may_be_new = name == "cifar100" and not root.exists() and root.parent.is_dir()
    if not root.is_dir() and not may_be_new:
        problem = "is a file" if root.exists() else "does not exist"
        there = next(folder for folder in root.absolute().parents if folder.is_dir())
        raise ConfigurationError(
            f"path={str(path)!r} {problem} ({_listing(there)} in {str(there)!r}); expected a "
            f"folder; for {name} pass one with {holds}"
        )
    return root


def _check_same_classes(root: Path, classes: dict[str, list[Any]]) -> None:
    (first, of_first), (second, of_second) = classes.items()
    only = {
        first: sorted(set(of_first) - set(of_second)),
        second: sorted(set(of_second) - set(of_first)),
    }
    differences = [
        f"{len(labels)} only in {place}: {_few(labels)}" for place, labels in only.items() if labels
    ]
    if differences:
        raise ConfigurationError(
            f"{first} and {second} of {str(root)!r} have different classes, "
            f"{'; '.join(differences)}; expected the same in both; add what is missing or remove "
            "what is too much"
        )


def _checked_order(order: Sequence[int], data: Data) -> list[int]:
    labels = [_integer(label) for label in order]
    known = set(range(data.classes))
    problems = {
        "missing": sorted(known - set(labels)),
        "no class": [
            given for given, label in zip(order, labels, strict=True) if label not in known
        ],
        "more than once": [label for label in known if labels.count(label) > 1],
    }
    if any(problems.values()):
        found = "; ".join(f"{what}: {_few(which)}" for what, which in problems.items() if which)
        raise ConfigurationError(
            f"order={_few(order)} is no order of the {data.classes} classes of {data.name} "
            f"({found}); expected each of 0 to {data.classes - 1} once; leave it out for the "
            "paper's order"
        )
    return [label for label in labels if label is not None]


def _first_of_each_class(y: np.ndarray, count: int, random: np.random.RandomState) -> np.ndarray:
    rows = [random.permutation(rows)[:count] for rows in _rows_of_each_class(y)]
    return np.sort(np.concatenate(rows))


def _rows_of_each_class(y: np.ndarray) -> list[np.ndarray]:
    _, counts = np.unique(y, return_counts=True)
    return np.split(np.argsort(y, kind="stable"), np.cumsum(counts)[:-1])


def _random(seed: int) -> np.random.RandomState:
    number = _integer(seed)
    if number is None or not 0 <= number < 2**32:
        raise ConfigurationError(f"seed={seed!r}; expected an integer from 0 to {2**32 - 1}")
    # numpy promises that RandomState's streams never change, so a seed means the same everywhere.
    return np.random.RandomState(number)


def _divisors(number: int) -> str:
    return ", ".join(str(part) for part in range(1, number + 1) if number % part == 0)


def _integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _positive(value: Any, name: str, what: str) -> int:
    number = _integer(value)
    if number is None or number < 1:
        raise ConfigurationError(
            f"{name}={value!r}; expected an integer of at least 1; pass the number of {what}"
        )
    return number


def _listing(folder: Path) -> str:
    """What a folder holds, for an error."""
    try:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    except OSError:
        names = []
    return f"found {_few(names)}" if names else "found nothing"


def _few(items: Iterable[Any], limit: int = 8) -> str:
    shown = [str(item) for item in items]
    more = f", … ({len(shown)} in all)" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more
