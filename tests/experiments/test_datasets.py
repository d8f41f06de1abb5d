"""Datasets: small copies in the formats of the real ones."""

from __future__ import annotations

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

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.datasets import load_data, scenarios
from tests.experiments.datasets_setup import arrays, images, write_npz, write_tree


def write_empty_tree(root, classes):
    """A folder with the class names of ImageNet, and empty files."""
    names = [f"n{number:08}" for number in range(classes)]
    for split in ("train", "val"):
        for name in names:
            (root / split / name).mkdir(parents=True)
            (root / split / name / "1.JPEG").touch()
    return names


@contextmanager
def serving(folder):
    """The address of a local web server for the files of a folder."""

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
    def test_color_jitter_changes_the_brightness_of_training_images_alone(self, tmp_path):
        data = load_data("cifar100", write_npz(tmp_path), color_jitter=True)
        grey = Image.fromarray(np.full((32, 32, 3), 128, np.uint8))

        def brightness(chain):
            return [float(Compose(chain[:-1])(grey)[:, 8:24, 8:24].mean()) for _ in range(200)]

        seen = np.array(brightness(data.train_transforms)) / (128 / 255)
        low, high = 1 - 63 / 255, 1 + 63 / 255
        assert low - 0.01 < seen.min() < low + 0.05  # whole grey levels
        assert high - 0.05 < seen.max() < high + 0.01
        assert len(set(brightness(data.test_transforms))) == 1
        plain = load_data("cifar100", tmp_path)
        assert len(set(brightness(plain.train_transforms))) == 1

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
            images, labels = arrays(dataset)
            assert np.array_equal(images, x[half])
            assert not np.array_equal(images, x[half].transpose(0, 2, 1, 3))
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

        other = load_data("imagenet-subset", tmp_path, subset="podnet")
        # as in the lists of PODNet's authors
        assert [Path(path).parent.name for path in arrays(other.test)[0]] == names[:100]
        assert len(set(drawn) & set(names[:100])) == 9

        whole = load_data("imagenet", tmp_path)
        assert whole.classes == 1000
        assert scenarios(whole, phases=10)[0].increments == [500] + [50] * 10

    def test_a_tree_of_the_hundred_is_taken_whole(self, tmp_path):
        names = write_empty_tree(tmp_path, 100)
        data = load_data("imagenet-subset", tmp_path)
        assert [Path(path).parent.name for path in arrays(data.train)[0]] == names
        with pytest.raises(ConfigurationError, match="has 100 classes, must have 1000"):
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
