"""Read and check datasets: digits, CIFAR-100 and image folders."""

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from torchvision.datasets import CIFAR100, ImageFolder

from aanets_plugin.checks import shorten
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.splits import paper_order

_SUBSET_CLASSES, _IMAGENET_CLASSES = 100, 1000

SUBSETS: dict[str, Callable[[], list[int]]] = {
    # Drawn by numpy with seed 1993, and copied to a tree, which is sorted again.
    "lucir": lambda: sorted(paper_order(_IMAGENET_CLASSES)[:_SUBSET_CLASSES]),
    "podnet": lambda: list(range(_SUBSET_CLASSES)),
}
"""The 100 classes of ImageNet-Subset as LUCIR's and as PODNet's authors chose them."""

CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange
orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit
raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel
streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip
turtle wardrobe whale willow_tree wolf woman worm
"""
"""The names of the classes of CIFAR-100 by label; the arrays in npz files have none."""

Samples = tuple[np.ndarray, np.ndarray]
"""Images [N, H, W, 3] or paths [N], and their labels."""


def read_digits(random: np.random.RandomState) -> tuple[Samples, Samples]:
    """Training and test samples of scikit-learn's digits: a random half of each class."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigurationError(
            f"dataset='digits': needs scikit-learn ({error}). Run pip install scikit-learn, or use "
            f"another dataset."
        ) from error
    pixels, y = load_digits(return_X_y=True)
    grey = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    x, y = np.repeat(grey, 3, axis=3), y.astype(np.int64)
    in_train = np.zeros(len(y), dtype=bool)
    for rows in rows_by_class(y):
        in_train[random.permutation(rows)[: (len(rows) + 1) // 2]] = True
    return (x[in_train], y[in_train]), (x[~in_train], y[~in_train])


def read_cifar100(root: Path) -> tuple[Samples, Samples]:
    """Training and test samples of the .npz files in `root`, else torchvision's CIFAR-100."""
    files = [root / "train.npz", root / "test.npz"]
    existing = [file.name for file in files if file.is_file()]
    if len(existing) == 1:
        raise ConfigurationError(
            f"path={str(root)!r}: has {existing[0]} only, must have train.npz and test.npz. Add "
            f"the other file, or remove this one to have CIFAR-100 downloaded there."
        )
    if not existing:
        return _torchvision_cifar100(root)
    train, test = (_read_npz(file) for file in files)
    labels, labels_of_test = (np.unique(y).tolist() for _, y in (train, test))
    _check_same_classes(root, {"train.npz": labels, "test.npz": labels_of_test})
    if labels != list(range(len(labels))):
        raise ConfigurationError(
            f"y in {str(files[0])!r} has the labels {shorten(labels)}: must be 0, 1, 2, … without "
            f"a gap. Renumber the classes in both files."
        )
    return train, test


def _read_npz(file: Path) -> Samples:
    try:
        archive = np.load(file, allow_pickle=False)
        if not hasattr(archive, "files"):
            raise ValueError("it is a single array")
        with archive:
            names = list(archive.files)
            arrays = {name: archive[name] for name in ("x", "y") if name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(
            f"{str(file)!r} cannot be read as an npz file of arrays ({error}). Write it with "
            f"numpy.savez(file, x=images, y=labels)."
        ) from error
    if len(arrays) < 2:
        raise ConfigurationError(
            f"{str(file)!r} has the arrays {shorten(names)}: must be x and y. Write it with "
            f"numpy.savez(file, x=images, y=labels)."
        )
    x, y = arrays["x"], arrays["y"]
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] != (32, 32, 3):
        raise ConfigurationError(
            f"x in {str(file)!r} is {x.dtype} {list(x.shape)}: must be uint8 [N, 32, 32, 3]. Put "
            f"the channels last (x.transpose(0, 2, 3, 1)) and store values from 0 to 255 as uint8."
        )
    if y.shape != x.shape[:1] or y.dtype.kind not in "iu" or not len(y):
        raise ConfigurationError(
            f"y in {str(file)!r} is {y.dtype} {list(y.shape)} for {len(x)} images in x: must be "
            f"one integer per image, the number of its class from 0, and at least one."
        )
    return x, y.astype(np.int64)


def _torchvision_cifar100(root: Path) -> tuple[Samples, Samples]:
    # Continuum's own CIFAR100 copies all images each time a scenario asks for them.
    is_new = not root.exists()
    contents = _describe_contents(root)
    try:
        splits = [CIFAR100(str(root), train=True, download=True), CIFAR100(str(root), train=False)]
    except (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError) as error:
        if is_new:
            with contextlib.suppress(OSError):
                root.rmdir()
        raise ConfigurationError(
            f"path={str(root)!r}: has no intact CIFAR-100 ({contents}), and the download from "
            f"{CIFAR100.url} failed ({error}). Put {CIFAR100.filename} or its folder "
            f"{CIFAR100.base_folder} there, or train.npz and test.npz with x (uint8 [N, 32, 32, "
            f"3]) and y."
        ) from error
    train, test = ((split.data, np.array(split.targets, dtype=np.int64)) for split in splits)
    return train, test


def read_image_tree(name: str, root: Path, subset: str | None = None) -> tuple[Samples, Samples]:
    """Training and test samples, paths and labels, of folders with one folder per class.

    `subset` chooses the classes of imagenet-subset from a folder of all of ImageNet.
    """
    train = _image_folder(root, ("train",))
    test = _image_folder(root, ("val", "test"))
    _check_same_classes(root, {f"{Path(tree.root).name}/": tree.classes for tree in (train, test)})
    chosen = list(range(len(train.classes)))
    if name == "imagenet-subset" and len(chosen) == _IMAGENET_CLASSES:
        chosen = SUBSETS[subset or "lucir"]()
    elif subset is not None:
        raise ConfigurationError(
            f"subset={subset!r}: cannot be chosen from {str(root)!r}, which has {len(chosen)} "
            f"classes and not {_IMAGENET_CLASSES}. Pass a folder of all of ImageNet, or leave out "
            f"subset."
        )
    expected = {"imagenet-subset": _SUBSET_CLASSES, "imagenet": _IMAGENET_CLASSES}.get(name)
    if expected is not None and len(chosen) != expected:
        or_all = f" or {_IMAGENET_CLASSES}" if name == "imagenet-subset" else ""
        raise ConfigurationError(
            f"path={str(root)!r}: has {len(chosen)} classes, must have {expected}{or_all} for "
            f"dataset={name!r}. For other numbers use dataset='folder'."
        )
    return _paths_of(train, chosen), _paths_of(test, chosen)


def _image_folder(root: Path, names: Sequence[str]) -> Any:
    folder = next((root / name for name in names if (root / name).is_dir()), None)
    if folder is None:
        raise ConfigurationError(
            f"path={str(root)!r}: has no folder {' or '.join(f'{name}/' for name in names)} "
            f"({_describe_contents(root)}). Pass a folder that has train/ and val/ (or test/), "
            f"each with one folder of images per class."
        )
    try:
        return ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{str(folder)!r} must have one folder per class with at least one image in each "
            f"({error}; {_describe_contents(folder)}). Sort the images into such folders, and "
            f"remove empty ones."
        ) from error


def _paths_of(tree: Any, chosen: Sequence[int]) -> Samples:
    # Continuum's own ImageFolderDataset cuts paths after 255 bytes and fails beyond ASCII.
    new_label = {label: place for place, label in enumerate(chosen)}
    kept = [(path, new_label[label]) for path, label in tree.samples if label in new_label]
    return np.array([path for path, _ in kept]), np.array([y for _, y in kept], dtype=np.int64)


def check_folder(name: str, path: str | Path | None) -> Path:
    """The folder of the dataset `name`, if it exists or can be created."""
    content = {
        "cifar100": "train.npz and test.npz, or CIFAR-100 as torchvision keeps it, or nothing yet",
    }.get(name, "train/ and val/ (or test/) with one folder of images per class")
    if path is None:
        raise ConfigurationError(
            f"dataset={name!r}: needs a path. Pass the folder with {content} (on the command line "
            f"--data)."
        )
    root = Path(path).expanduser()
    may_be_new = name == "cifar100" and not root.exists() and root.parent.is_dir()
    if not root.is_dir() and not may_be_new:
        problem = "is a file" if root.exists() else "does not exist"
        parent = next(folder for folder in root.absolute().parents if folder.is_dir())
        raise ConfigurationError(
            f"path={str(path)!r}: {problem} ({str(parent)!r} {_describe_contents(parent)}). For "
            f"dataset={name!r} pass a folder with {content}."
        )
    return root


def _check_same_classes(root: Path, classes: dict[str, list[Any]]) -> None:
    (first, of_first), (second, of_second) = classes.items()
    only_first, only_second = set(of_first) - set(of_second), set(of_second) - set(of_first)
    for place, only in ((first, only_first), (second, only_second)):
        if only:
            raise ConfigurationError(
                f"{first} and {second} of {str(root)!r} must have the same classes ({len(only)} "
                f"only in {place}: {shorten(sorted(only))}). Add or remove classes."
            )


def rows_by_class(y: np.ndarray) -> list[np.ndarray]:
    """The positions of the samples of each class."""
    _, counts = np.unique(y, return_counts=True)
    return np.split(np.argsort(y, kind="stable"), np.cumsum(counts)[:-1])


def _describe_contents(folder: Path) -> str:
    """The contents of a folder, for an error message."""
    try:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    except OSError:
        names = []
    return f"contains {shorten(names) or 'nothing'}"
