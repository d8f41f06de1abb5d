"""Invalid data raises an error that says what to do."""

from __future__ import annotations

import numpy as np
import pytest

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.datasets import DATASETS, load_data
from tests.experiments.datasets_setup import images, write_npz, write_tree


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "tree", {"ant": 3, "bee": 2}, {"ant": 1, "bee": 2})


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("cifar10", {}, ["'cifar10'", *DATASETS]),
        ("cifar100", {}, ["'cifar100': needs a path", "--data"]),
        ("imagenet", {}, ["'imagenet': needs a path", "train/ and val/"]),
        ("digits", {"path": "there"}, ["'there'", "Leave out path"]),
        ("digits", {"per_class": 0}, ["per_class=0"]),
        ("digits", {"per_class": 1.5}, ["per_class=1.5"]),
        ("digits", {"seed": -1}, ["seed=-1"]),
        ("digits", {"seed": None}, ["seed=None"]),
        ("digits", {"image_size": 32}, ["image_size=32", "8 pixels"]),
        ("folder", {"image_size": 0}, ["image_size=0"]),
    ],
)
def test_an_argument_that_cannot_be_is_quoted(name, options, parts):
    with pytest.raises(ConfigurationError) as caught:
        load_data(name, **options)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize("name", ["imagenet", "imagenet-subset", "folder", "cifar100"])
def test_a_path_that_is_not_there_says_what_is(name, tree):
    with pytest.raises(ConfigurationError, match="does not exist") as caught:
        load_data(name, tree / "wrong" / "way")
    assert all(part in str(caught.value) for part in ("train/, val/", "wrong"))
    assert not (tree / "wrong").exists()


def test_a_path_to_a_file_is_refused(tmp_path):
    (tmp_path / "data.zip").touch()
    for name in ("folder", "cifar100"):
        with pytest.raises(ConfigurationError, match=r"data\.zip': is a file"):
            load_data(name, tmp_path / "data.zip")


def test_a_tree_without_its_halves_says_what_it_has(tree):
    with pytest.raises(ConfigurationError, match=r"no folder train/ \(contains ant/, bee/\)"):
        load_data("folder", tree / "train")
    (tree / "val").rename(tree / "other")
    with pytest.raises(ConfigurationError, match=r"no folder val/ or test/ .*other/, train/"):
        load_data("folder", tree)


def test_images_that_are_not_sorted_by_class_are_refused(tree):
    for folder in ("ant", "bee"):
        for file in (tree / "val" / folder).iterdir():
            file.rename(tree / "val" / f"{folder}{file.name}")
        (tree / "val" / folder).rmdir()
    with pytest.raises(ConfigurationError, match=r"one folder per class") as caught:
        load_data("folder", tree)
    assert "ant0.png" in str(caught.value)


def test_a_class_without_images_is_named(tree):
    (tree / "train" / "cow").mkdir()
    with pytest.raises(ConfigurationError, match="cow"):
        load_data("folder", tree)


def test_halves_with_different_classes_are_refused(tmp_path):
    write_tree(tmp_path, {"ant": 1, "bee": 1, "cow": 1}, {"ant": 1, "dog": 1})
    with pytest.raises(ConfigurationError) as caught:
        load_data("folder", tmp_path)
    for part in ("train/ and val/", "2 only in train/: bee, cow"):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["imagenet", "imagenet-subset"])
def test_imagenet_is_known_by_its_number_of_classes(name, tree):
    with pytest.raises(ConfigurationError, match=r"has 2 classes, must have 100.*'folder'"):
        load_data(name, tree)


def test_one_npz_file_alone_is_refused(tmp_path):
    (write_npz(tmp_path) / "test.npz").unlink()
    with pytest.raises(ConfigurationError, match=r"has train.npz only"):
        load_data("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"images": [1], "y": [0]}, ["images, y", "must be x and y"]),
        ({"x": images([0, 1])[0], "y": [0]}, ["int64 [1]", "2 images"]),
        ({"x": images([])[0], "y": np.zeros(0, int)}, ["0 images"]),
        (
            {"x": images([0])[0].transpose(0, 3, 1, 2), "y": [0]},
            ["[1, 3, 32, 32]", "transpose"],
        ),
        ({"x": images([0])[0] / 255, "y": [0]}, ["float64 [1, 32, 32, 3]", "uint8"]),
        ({"x": images([0])[0], "y": [0.0]}, ["y in", "float64 [1]"]),
        ({"x": images([0])[0], "y": [[1, 0]]}, ["y in", "[1, 2]"]),
        ({"x": images([0])[0], "y": [0]}, ["2 only in test.npz: 1, 2"]),
        ({"x": np.array([{}]), "y": [0]}, ["cannot be read as an npz file"]),
    ],
)
def test_an_npz_file_that_is_something_else_is_refused(tmp_path, content, parts):
    np.savez(write_npz(tmp_path) / "train.npz", **content)
    with pytest.raises(ConfigurationError) as caught:
        load_data("cifar100", tmp_path)
    assert all(part in str(caught.value) for part in [*parts, "train.npz"]), str(caught.value)


def test_labels_that_do_not_start_at_zero_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"labels 1, 2, 4: must be 0, 1, 2"):
        load_data("cifar100", write_npz(tmp_path, train=[1, 2, 4], test=[4, 2, 1]))


def test_a_damaged_npz_file_is_refused(tmp_path):
    file = write_npz(tmp_path) / "train.npz"
    whole = file.read_bytes()
    with (tmp_path / "one.npy").open("wb") as array:
        np.save(array, np.zeros(3))
    for content in (whole[: len(whole) // 2], b"", (tmp_path / "one.npy").read_bytes()):
        file.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"train.npz' cannot be read as an npz"):
            load_data("cifar100", tmp_path)
    file.write_bytes(whole)
    assert load_data("cifar100", tmp_path).classes == 3
