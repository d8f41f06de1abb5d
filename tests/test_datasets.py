"""The datasets of the examples: made small here, read by the code that reads the real ones."""

from __future__ import annotations

import doctest
import hashlib
import pickle
import socket
import tarfile
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from continuum.rehearsal import RehearsalMemory
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR100
from torchvision.transforms import Compose

from aanets_plugin.adapters.continuum import splits
from aanets_plugin.adapters.continuum.datasets import DATASETS, Data, load_data, scenarios
from aanets_plugin.adapters.continuum.splits import check_split, paper_order
from aanets_plugin.errors import ConfigurationError

# The order that class-incremental papers since iCaRL learn CIFAR-100 in.
PUBLISHED_ORDER = [68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89, 3, 92, 55, 9, 26, 80, 43, 38]


def arrays(dataset):
    x, y, _ = dataset.get_data()
    return x, y


def images(labels, seed=0):
    """Noise, and the labels as an array."""
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8), np.array(labels)


def write_npz(root, train=(0, 1, 2, 0), test=(2, 1, 0)):
    root.mkdir(exist_ok=True)
    for seed, (name, labels) in enumerate({"train": train, "test": test}.items()):
        x, y = images(labels, seed)
        np.savez(root / f"{name}.npz", x=x, y=y)
    return root


def write_tree(root, train, test, below="val"):
    """One small picture per count, in the folder of its class; a picture is grey like its class."""
    for split, counts in (("train", train), (below, test)):
        for place, (label, count) in enumerate(counts.items()):
            folder = root / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40, 30), (20 * place,) * 3).save(folder / f"{number}.png")
    return root


def write_empty_tree(root, classes):
    """Named like ImageNet's, with files that are never opened."""
    names = [f"n{number:08}" for number in range(classes)]
    for split in ("train", "val"):
        for name in names:
            (root / split / name).mkdir(parents=True)
            (root / split / name / "1.JPEG").touch()
    return names


@contextmanager
def serving(folder):
    """The address of a web server of this machine with the files of a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def md5(file):
    return hashlib.md5(file.read_bytes()).hexdigest()


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "tree", {"ant": 3, "bee": 2}, {"ant": 1, "bee": 2})


class TestDigits:
    def test_both_halves_together_are_the_digits_in_grey(self):
        data = load_data("digits")
        (x, y), (x_test, y_test) = arrays(data.train), arrays(data.test)
        pixels, labels = load_digits(return_X_y=True)
        assert x.dtype == np.uint8
        assert (x.min(), x.max()) == (0, 255)
        assert (x == x[..., :1]).all()

        def rows(values, y):
            return sorted(map(tuple, np.column_stack([values, y]).tolist()))

        back = np.concatenate([x, x_test])[..., 0].reshape(-1, 64) / 255 * 16
        both = rows(back.round(), np.concatenate([y, y_test]))
        assert both == rows(pixels, labels)
        assert both != rows(pixels, labels[::-1])

    def test_half_of_every_class_is_for_training(self):
        data = load_data("digits")
        train, test = (np.bincount(arrays(half)[1]) for half in (data.train, data.test))
        assert (train + test == np.bincount(load_digits().target)).all()
        assert set(train - test) == {0, 1}

    def test_the_seed_fixes_the_halves(self):
        first, again, other = (arrays(load_data("digits", seed=s).train)[0] for s in (3, 3, 4))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_a_network_sees_three_normalised_channels(self):
        data = load_data("digits")
        _, test = scenarios(data, base_classes=0, phases=1)
        x = torch.stack([test[0][i][0] for i in range(len(test[0]))])
        assert x.shape[1:] == data.input_shape == (3, 8, 8)
        assert abs(x.mean()) < 0.02
        assert abs(x.std() - 1) < 0.02

    def test_training_moves_a_digit_by_a_pixel_and_never_mirrors_it(self):
        data = load_data("digits")
        digit = Image.fromarray(arrays(data.train)[0][0])
        padded = np.pad(np.asarray(digit), ((1, 1), (1, 1), (0, 0)))
        to_tensor = Compose(data.test_transforms)
        moved = [
            to_tensor(Image.fromarray(padded[i : i + 8, j : j + 8]))
            for i in range(3)
            for j in range(3)
        ]
        torch.manual_seed(0)
        seen = [Compose(data.train_transforms)(digit) for _ in range(100)]
        assert all(any(torch.equal(one, other) for other in moved) for one in seen)
        assert len({tuple(one.flatten().tolist()) for one in seen}) == 9
        assert not any(torch.equal(seen[0].flip(2), other) for other in moved)


class TestCifar100:
    def test_npz_files_are_read_as_they_are(self, tmp_path):
        data = load_data("cifar100", write_npz(tmp_path))
        for dataset, seed, labels in ((data.train, 0, [0, 1, 2, 0]), (data.test, 1, [2, 1, 0])):
            x, y = arrays(dataset)
            assert np.array_equal(x, images(labels, seed)[0])
            assert not np.array_equal(x, images(labels, seed + 1)[0])
            assert y.tolist() == labels
        assert (data.classes, data.input_shape) == (3, (3, 32, 32))

    def test_test_images_are_normalised_as_in_the_official_code(self, tmp_path):
        data = load_data("cifar100", write_npz(tmp_path))
        _, test = scenarios(data, base_classes=0, phases=1, order=[0, 1, 2])
        mean, std = np.array([0.5071, 0.4866, 0.4409]), np.array([0.2009, 0.1984, 0.2023])
        expected = (images([2, 1, 0], 1)[0] / 255 - mean) / std
        seen = torch.stack([test[0][i][0] for i in range(3)]).permute(0, 2, 3, 1).numpy()
        np.testing.assert_allclose(seen, expected, atol=1e-5)  # float32 arithmetic
        assert np.abs(seen[::-1] - expected).max() > 1

    def test_training_images_are_cropped_from_a_border_of_four_and_mirrored(self, tmp_path):
        data = load_data("cifar100", write_npz(tmp_path))
        image = arrays(data.train)[0][0]
        padded = torch.tensor(np.pad(image, ((4, 4), (4, 4), (0, 0)))).permute(2, 0, 1)

        def crops(picture):
            return [picture[:, i : i + 32, j : j + 32] for i in range(9) for j in range(9)]

        # up to the tensor; what follows is the normalisation
        train = Compose(data.train_transforms[:-1])
        torch.manual_seed(0)
        seen = [(train(Image.fromarray(image)) * 255).round() for _ in range(60)]
        straight, mirrored = (
            [any(torch.equal(one, crop) for crop in crops(way)) for one in seen]
            for way in (padded, padded.flip(2))
        )
        assert [a != b for a, b in zip(straight, mirrored, strict=True)] == [True] * 60
        assert 15 < sum(straight) < 45
        assert len({one.numpy().tobytes() for one in seen}) > 30

    def test_the_original_files_are_read_by_torchvision(self, original):
        root, x, y = original
        data = load_data("cifar100", root)
        for dataset, half in ((data.train, slice(0, 4)), (data.test, slice(4, 7))):
            found, labels = arrays(dataset)
            assert np.array_equal(found, x[half])
            assert not np.array_equal(found, x[half].transpose(0, 2, 1, 3))
            assert labels.tolist() == y[half].tolist()

    def test_the_archive_is_downloaded_and_unpacked(self, tmp_path, original, monkeypatch):
        root, x, _ = original
        monkeypatch.setenv("no_proxy", "*")
        archive = tmp_path / "served" / "archive.tar.gz"
        archive.parent.mkdir()
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(root / CIFAR100.base_folder, CIFAR100.base_folder)
        monkeypatch.setattr(CIFAR100, "tgz_md5", md5(archive))
        with serving(archive.parent) as address:
            monkeypatch.setattr(CIFAR100, "url", f"{address}/{archive.name}")
            data = load_data("cifar100", tmp_path / "new")
        assert np.array_equal(arrays(data.train)[0], x[:4])
        assert (tmp_path / "new" / CIFAR100.filename).is_file()

    def test_a_file_that_is_not_the_original_is_refused(self, original, unreachable):
        root, _, _ = original
        with (root / CIFAR100.base_folder / "train").open("ab") as file:
            file.write(b"!")
        with pytest.raises(ConfigurationError, match="no intact CIFAR-100"):
            load_data("cifar100", root)

    def test_without_internet_it_says_where_the_files_go(self, tmp_path, unreachable):
        with pytest.raises(ConfigurationError) as caught:
            load_data("cifar100", tmp_path / "new")
        message = str(caught.value)
        for part in (str(tmp_path / "new"), unreachable, "cifar-100-python", "train.npz"):
            assert part in message
        assert not (tmp_path / "new").exists()

    @pytest.fixture
    def original(self, tmp_path, monkeypatch):
        """The real layout with few images, whose checksums torchvision is told."""
        x, y = images([0, 1, 2, 2, 2, 1, 0])
        root = tmp_path / "root"
        folder = root / CIFAR100.base_folder
        folder.mkdir(parents=True)
        for name, half in (("train", slice(0, 4)), ("test", slice(4, 7))):
            flat = x[half].transpose(0, 3, 1, 2).reshape(-1, 3072)
            entry = {"data": flat, "fine_labels": y[half].tolist(), "coarse_labels": [9] * 4}
            (folder / name).write_bytes(pickle.dumps(entry, protocol=2))
            monkeypatch.setattr(CIFAR100, f"{name}_list", [[name, md5(folder / name)]])
        names = {"fine_label_names": ["apple", "bear", "can"]}
        (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
        monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": md5(folder / "meta")})
        return root, x, y

    @pytest.fixture
    def unreachable(self, monkeypatch):
        """An address at which nobody answers."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/cifar-100-python.tar.gz"
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(CIFAR100, "url", url)
        return url


class TestImageTrees:
    def test_a_tree_is_read_by_path_and_seen_at_224_pixels(self, tree):
        data = load_data("folder", tree)
        train, test = scenarios(data, base_classes=0, phases=2, order=[1, 0])
        assert arrays(data.train)[1].tolist() == [0, 0, 0, 1, 1]
        assert [len(phase) for phase in train] == [2, 3]
        for scenario in (train, test):
            image, label, _ = scenario[0][0]
            assert image.shape == data.input_shape == (3, 224, 224)
            assert label == 0
            # bee is the second class of the tree: 20 of 255 grey, normalised as ImageNet
            assert torch.allclose(image[0], torch.tensor((20 / 255 - 0.485) / 0.229), atol=1e-5)
            assert not torch.allclose(scenario[1][0][0], image)

    def test_the_image_size_is_what_the_network_sees(self, tree):
        data = load_data("folder", tree, image_size=28)
        assert data.input_shape == (3, 28, 28)
        for scenario in scenarios(data, base_classes=0, phases=1):
            assert scenario[0][0][0].shape == (3, 28, 28)

    def test_test_images_keep_the_same_border_at_every_size(self, tree):
        for size, resized in ((224, 256), (112, 128)):
            chain = load_data("folder", tree, image_size=size).test_transforms
            assert chain[0](Image.new("RGB", (40, 30))).size[1] == resized

    def test_a_folder_named_test_serves_where_there_is_no_val(self, tmp_path):
        counts = {"ant": 1, "bee": 1}
        data = load_data("folder", write_tree(tmp_path, counts, {"ant": 2, "bee": 3}, "test"))
        assert arrays(data.test)[1].tolist() == [0, 0, 1, 1, 1]
        write_tree(tmp_path / "more", counts, counts)
        (tmp_path / "more" / "val").rename(tmp_path / "val")
        assert arrays(load_data("folder", tmp_path).test)[1].tolist() == [0, 1]

    def test_long_and_foreign_names_are_read(self, tmp_path):
        root = tmp_path / ("long" * 50) / ("longer" * 20)
        counts = {"Ameise": 1, "Käfer 甲虫": 1}
        write_tree(root, counts, counts)
        data = load_data("folder", root, image_size=8)
        assert len(str(arrays(data.train)[0][1])) > 300
        _, test = scenarios(data, base_classes=0, phases=2, order=[1, 0])
        assert test[0][0][0].shape == (3, 8, 8)

    def test_paths_go_through_a_rehearsal_memory(self, tree):
        train, _ = scenarios(load_data("folder", tree), base_classes=0, phases=2, order=[0, 1])
        memory = RehearsalMemory(4, "random", fixed_memory=True, nb_total_classes=2)
        memory.add(*train[0].get_raw_samples(), None)
        phase = train[1]
        phase.add_samples(*memory.get())
        assert sorted(int(phase[i][1]) for i in range(len(phase))) == [0, 0, 1, 1]

    def test_a_subset_of_imagenet_is_the_one_that_was_published(self, tmp_path):
        names = write_empty_tree(tmp_path, 1000)
        data = load_data("imagenet-subset", tmp_path)
        # as LUCIR's authors draw it, and then copy it to a tree that is sorted again
        drawn = sorted(np.random.RandomState(1993).choice(names, 100, replace=False))
        assert data.classes == 100
        for dataset in (data.train, data.test):
            x, y = arrays(dataset)
            assert [Path(path).parent.name for path in x] == drawn
            assert y.tolist() == list(range(100))
        assert drawn != names[:100]

        whole = load_data("imagenet", tmp_path)
        assert whole.classes == 1000
        assert scenarios(whole, phases=10)[0].increments == [500] + [50] * 10

    def test_a_tree_of_the_hundred_is_taken_whole(self, tmp_path):
        names = write_empty_tree(tmp_path, 100)
        data = load_data("imagenet-subset", tmp_path)
        assert [Path(path).parent.name for path in arrays(data.train)[0]] == names
        with pytest.raises(ConfigurationError, match="has 100 classes; expected 1000"):
            load_data("imagenet", tmp_path)


class TestPerClass:
    def test_at_most_so_many_of_each_class_are_kept_and_all_for_testing(self, tmp_path):
        root = write_npz(tmp_path, train=[0] * 5 + [1] * 2 + [2] * 9, test=[0, 1, 1, 2])
        data = load_data("cifar100", root, per_class=3)
        assert np.bincount(arrays(data.train)[1]).tolist() == [3, 2, 3]
        assert arrays(data.test)[1].tolist() == [0, 1, 1, 2]

    def test_the_seed_draws_them_and_more_include_fewer(self, tmp_path):
        root = write_npz(tmp_path, train=[0, 1] * 30, test=[0, 1])

        def drawn(count, seed):
            x, y = arrays(load_data("cifar100", root, per_class=count, seed=seed).train)
            return {(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)}

        assert drawn(5, 1) == drawn(5, 1)
        assert drawn(5, 1) < drawn(9, 1)
        assert not drawn(5, 1) <= drawn(9, 2)

    def test_images_keep_their_labels(self, tree):
        x, y = arrays(load_data("folder", tree, per_class=1).train)
        assert [Path(path).parent.name for path in x] == ["ant", "bee"]
        assert y.tolist() == [0, 1]


class TestScenarios:
    def test_half_of_the_classes_come_first_in_the_order_of_the_paper(self):
        data = load_data("digits")
        order = paper_order("digits", 10)
        for scenario, dataset in zip(
            scenarios(data, phases=5), (data.train, data.test), strict=True
        ):
            assert [phase.get_classes().tolist() for phase in scenario] == [
                [0, 1, 2, 3, 4],
                [5],
                [6],
                [7],
                [8],
                [9],
            ]
            x, y = arrays(dataset)
            for phase, classes in ((0, order[:5]), (5, order[9:])):
                expected = x[np.isin(y, classes)]
                assert np.array_equal(scenario[phase].get_raw_samples()[0], expected)
            other = x[np.isin(y, range(5))]
            assert not np.array_equal(scenario[0].get_raw_samples()[0], other)

    def test_an_order_of_ones_own_is_kept_in_both(self):
        order = [9, 1, 8, 2, 7, 3, 6, 4, 5, 0]
        for given in (order, np.array(order), torch.tensor(order)):
            for scenario in scenarios(load_data("digits"), base_classes=4, phases=3, order=given):
                assert scenario.increments == [4, 2, 2, 2]
                found = scenario.get_original_targets(scenario[1].get_classes())
                assert found.tolist() == [7, 3]

    def test_training_is_augmented_and_testing_is_not(self):
        train, test = scenarios(load_data("digits"), phases=1)
        torch.manual_seed(0)
        assert len({tuple(train[0][0][0].flatten().tolist()) for _ in range(20)}) > 1
        assert len({tuple(test[0][0][0].flatten().tolist()) for _ in range(20)}) == 1

    def test_the_order_of_the_paper_is_the_published_one(self):
        assert paper_order("cifar100", 100)[:20] == PUBLISHED_ORDER
        assert paper_order("cifar100", 100, seed=1994)[:20] != PUBLISHED_ORDER
        assert sorted(paper_order("imagenet", 1000)) == list(range(1000))

    def test_the_global_state_of_numpy_is_left_alone(self):
        def after(action):
            np.random.seed(7)
            action()
            return np.random.random()

        untouched = after(lambda: None)
        assert after(lambda: scenarios(load_data("digits", per_class=3), phases=5)) == untouched
        assert after(lambda: np.random.shuffle(np.arange(10))) != untouched

    def test_the_papers_splits(self):
        assert check_split(100, phases=25) == [50] + [2] * 25
        assert check_split(1000, phases=5) == [500] + [100] * 5
        assert check_split(100, base_classes=0, phases=10) == [10] * 10

    @pytest.mark.parametrize(
        ("classes", "split", "parts"),
        [
            (100, {"phases": 7}, ["phases=7", "50 classes", "1, 2, 5, 10, 25, 50"]),
            (10, {"base_classes": 4, "phases": 4}, ["phases=4", "6 classes", "1, 2, 3, 6"]),
            (10, {"base_classes": 0, "phases": 3}, ["the 10 classes;", "1, 2, 5, 10"]),
            (7, {"phases": 1}, ["7 classes have no half", "4, with phases one of 1, 3"]),
            (1, {"phases": 1}, ["base_classes=0 with phases=1"]),
            (10, {"base_classes": 10, "phases": 1}, ["base_classes=10", "from 0 to 9"]),
            (10, {"base_classes": -2, "phases": 1}, ["base_classes=-2"]),
            (10, {"base_classes": 2.5, "phases": 1}, ["base_classes=2.5"]),
            (10, {"phases": 0}, ["phases=0", "at least 1"]),
            (10, {"phases": True}, ["phases=True"]),
            (0, {"phases": 1}, ["classes=0"]),
        ],
    )
    def test_an_impossible_split_says_what_would_do(self, classes, split, parts):
        with pytest.raises(ConfigurationError) as caught:
            check_split(classes, **split)
        assert all(part in str(caught.value) for part in parts), str(caught.value)

    def test_the_split_is_checked_before_the_data_is_touched(self):
        data = Data("mine", None, None, [], [], (3, 8, 8), 10)
        with pytest.raises(ConfigurationError, match="phases=4"):
            scenarios(data, phases=4)

    @pytest.mark.parametrize(
        ("order", "parts"),
        [
            (range(9), ["missing: 9"]),
            ([0, 0, *range(2, 10)], ["missing: 1", "more than once: 0"]),
            ([*range(9), 10], ["missing: 9", "no class: 10"]),
            ([*range(9), 9.5], ["no class: 9.5"]),
            ("0123456789", ["no class: 0, 1"]),
            ([], ["missing: 0, 1"]),
        ],
    )
    def test_something_else_than_an_order_of_the_classes_is_refused(self, order, parts):
        with pytest.raises(ConfigurationError) as caught:
            scenarios(load_data("digits"), phases=5, order=order)
        parts = [*parts, "10 classes of digits"]
        assert all(part in str(caught.value) for part in parts), str(caught.value)


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "options", "parts"),
        [
            ("cifar10", {}, ["'cifar10'", *DATASETS]),
            ("cifar100", {}, ["cifar100 needs a path", "--data"]),
            ("imagenet", {}, ["imagenet needs a path", "train/ and val/"]),
            ("digits", {"path": "there"}, ["'there'", "leave path out"]),
            ("digits", {"per_class": 0}, ["per_class=0"]),
            ("digits", {"per_class": 1.5}, ["per_class=1.5"]),
            ("digits", {"seed": -1}, ["seed=-1"]),
            ("digits", {"seed": None}, ["seed=None"]),
            ("digits", {"image_size": 32}, ["image_size=32", "8 pixels"]),
            ("folder", {"image_size": 0}, ["image_size=0"]),
        ],
    )
    def test_an_argument_that_cannot_be_is_quoted(self, name, options, parts):
        with pytest.raises(ConfigurationError) as caught:
            load_data(name, **options)
        assert all(part in str(caught.value) for part in parts), str(caught.value)

    @pytest.mark.parametrize("name", ["imagenet", "imagenet-subset", "folder", "cifar100"])
    def test_a_path_that_is_not_there_says_what_is(self, name, tree):
        with pytest.raises(ConfigurationError, match="does not exist") as caught:
            load_data(name, tree / "wrong" / "way")
        assert all(part in str(caught.value) for part in ("train/, val/", "wrong"))
        assert not (tree / "wrong").exists()

    def test_a_path_to_a_file_is_refused(self, tmp_path):
        (tmp_path / "data.zip").touch()
        for name in ("folder", "cifar100"):
            with pytest.raises(ConfigurationError, match=r"data\.zip' is a file"):
                load_data(name, tmp_path / "data.zip")

    def test_a_tree_without_its_halves_says_what_it_has(self, tree):
        with pytest.raises(ConfigurationError, match=r"no folder train/ \(found ant/, bee/\)"):
            load_data("folder", tree / "train")
        (tree / "val").rename(tree / "other")
        with pytest.raises(ConfigurationError, match=r"no folder val/ or test/ .*other/, train/"):
            load_data("folder", tree)

    def test_images_that_are_not_sorted_by_class_are_refused(self, tree):
        for folder in ("ant", "bee"):
            for file in (tree / "val" / folder).iterdir():
                file.rename(tree / "val" / f"{folder}{file.name}")
            (tree / "val" / folder).rmdir()
        with pytest.raises(ConfigurationError, match=r"one folder per class") as caught:
            load_data("folder", tree)
        assert "ant0.png" in str(caught.value)

    def test_a_class_without_images_is_named(self, tree):
        (tree / "train" / "cow").mkdir()
        with pytest.raises(ConfigurationError, match="cow"):
            load_data("folder", tree)

    def test_halves_with_different_classes_are_refused(self, tmp_path):
        write_tree(tmp_path, {"ant": 1, "bee": 1, "cow": 1}, {"ant": 1, "dog": 1})
        with pytest.raises(ConfigurationError) as caught:
            load_data("folder", tmp_path)
        for part in ("train/ and val/", "2 only in train/: bee, cow", "1 only in val/: dog"):
            assert part in str(caught.value)

    @pytest.mark.parametrize("name", ["imagenet", "imagenet-subset"])
    def test_imagenet_is_known_by_its_number_of_classes(self, name, tree):
        with pytest.raises(ConfigurationError, match=r'has 2 classes; expected 100.*"folder"'):
            load_data(name, tree)

    def test_one_npz_file_alone_is_refused(self, tmp_path):
        (write_npz(tmp_path) / "test.npz").unlink()
        with pytest.raises(ConfigurationError, match=r"has train.npz alone"):
            load_data("cifar100", tmp_path)

    @pytest.mark.parametrize(
        ("content", "parts"),
        [
            ({"images": [1], "y": [0]}, ["images, y", "expected x and y"]),
            ({"x": images([0, 1])[0], "y": [0]}, ["2 images", "1 labels"]),
            ({"x": images([])[0], "y": np.zeros(0, int)}, ["0 images"]),
            (
                {"x": images([0])[0].transpose(0, 3, 1, 2), "y": [0]},
                ["[1, 3, 32, 32]", "transpose"],
            ),
            ({"x": images([0])[0] / 255, "y": [0]}, ["float64 [1, 32, 32, 3]", "uint8"]),
            ({"x": images([0])[0], "y": [0.0]}, ["y in", "float64 [1]"]),
            ({"x": images([0])[0], "y": [[1, 0]]}, ["y in", "[1, 2]"]),
            ({"x": images([0])[0], "y": [0]}, ["2 only in test.npz: 1, 2"]),
            ({"x": np.array([{}]), "y": [0]}, ["does not read as an npz file"]),
        ],
    )
    def test_an_npz_file_that_is_something_else_is_refused(self, tmp_path, content, parts):
        np.savez(write_npz(tmp_path) / "train.npz", **content)
        with pytest.raises(ConfigurationError) as caught:
            load_data("cifar100", tmp_path)
        assert all(part in str(caught.value) for part in [*parts, "train.npz"]), str(caught.value)

    def test_labels_that_do_not_start_at_zero_are_refused(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"labels 1, 2, 4; expected 0, 1, 2"):
            load_data("cifar100", write_npz(tmp_path, train=[1, 2, 4], test=[4, 2, 1]))

    def test_a_damaged_npz_file_is_refused(self, tmp_path):
        file = write_npz(tmp_path) / "train.npz"
        whole = file.read_bytes()
        with (tmp_path / "one.npy").open("wb") as array:
            np.save(array, np.zeros(3))
        for content in (whole[: len(whole) // 2], b"", (tmp_path / "one.npy").read_bytes()):
            file.write_bytes(content)
            with pytest.raises(ConfigurationError, match=r"train.npz' does not read as an npz"):
                load_data("cifar100", tmp_path)
        file.write_bytes(whole)
        assert load_data("cifar100", tmp_path).classes == 3


def test_the_examples_in_the_docstrings_run():
    assert doctest.testmod(splits).attempted
    assert not doctest.testmod(splits).failed
