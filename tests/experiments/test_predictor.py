"""load_run gives the network of a run, which predicts as the run has measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from aanets_plugin import ConfigurationError, levels
from aanets_plugin.baselines import LUCIR, CifarResNet
from aanets_plugin.experiments import AANets, load_data, load_run, scenarios
from aanets_plugin.experiments.command import main
from aanets_plugin.experiments.datasets import Data
from tests.experiments.run_setup import INCREMENTS, METHODS, digits, rows_of, small_run

SPLIT = {"base_classes": 6, "phases": 2}
NAMES = [f"digit {label}" for label in range(10)]


def test_images_of(phase):
    """The test images of all classes seen, as arrays, and the names of their classes."""
    _, test = scenarios(digits(), **SPLIT)
    x, y, _ = test[: phase + 1].get_raw_samples()
    return x, [NAMES[test.class_order[label]] for label in y]


test_images_of.__test__ = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "lucir"
    options = {"class_names": NAMES, "keep_phases": True}
    small_run(path, METHODS["lucir"], aanets=AANets(stem="paired"), **options)
    return path


@pytest.fixture(scope="module")
def icarl(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "icarl"
    small_run(path, METHODS["icarl"])
    return path


def accuracy(names, wanted):
    return 100 * np.mean([a == b for a, b in zip(names, wanted, strict=True)])


@pytest.mark.parametrize("phase", [0, 1, 2, -1, -2])
def test_the_accuracy_of_a_phase_is_what_the_run_has_measured(folder, phase):
    predictor = load_run(folder, phase)
    seen = range(3)[phase]
    assert predictor.phase == seen
    assert len(predictor.class_names) == sum(INCREMENTS[: seen + 1])
    assert len(levels(predictor.net)) == 3
    images, wanted = test_images_of(seen)
    for rule in ("head", "nearest_mean"):
        found = predictor.predict(images, by=rule, batch_size=7, progress=False)
        expected = rows_of(folder)[seen][rule]["all"]
        assert accuracy(found.names, wanted) == pytest.approx(expected)
        assert accuracy(found.names[::-1], wanted) != pytest.approx(expected)  # the control
        assert found.scores.shape == (len(images), len(predictor.class_names))
    probabilities = predictor.predict(images[:2], by="head", progress=False).scores
    assert torch.allclose(probabilities.sum(1), torch.ones(2))


def test_a_method_predicts_by_its_own_rule_and_a_plain_network_is_loaded_too(icarl):
    predictor = load_run(icarl)
    assert predictor.predicts_by == "nearest_mean"
    assert not levels(predictor.net)
    assert predictor.class_names[0] == str(scenarios(digits(), **SPLIT)[1].class_order[0])
    images, _ = test_images_of(2)
    ours = predictor.predict(images, progress=False)
    by_means = predictor.predict(images, by="nearest_mean", progress=False)
    assert torch.equal(ours.scores, by_means.scores)
    assert ours.scores.min() >= -1
    (best, *_) = ours.top(2)
    assert best[0] == (ours.names[0], ours.scores[0].max().item())
    assert best[0][1] >= best[1][1]


def test_every_kind_of_image_gives_the_same_scores(folder, tmp_path):
    predictor = load_run(folder)
    arrays = test_images_of(2)[0][:3]
    pil = [Image.fromarray(array) for array in arrays]
    files = [tmp_path / f"{place}.png" for place in range(3)]
    for image, file in zip(pil, files, strict=True):
        image.save(file)
    tensors = torch.from_numpy(arrays).permute(0, 3, 1, 2)
    expected = predictor.predict(pil, progress=False).scores
    for images in (
        files,
        [str(file) for file in files],
        arrays,
        list(arrays),
        tensors,
        tensors.float() / 255,
        [pil[0], arrays[1], tensors[2]],
        arrays[..., :1],  # the digits are grey
    ):
        assert torch.equal(predictor.predict(images, progress=False).scores, expected)
    for one in (pil[0], files[0], arrays[0], tensors[0]):
        alone = predictor.predict(one, progress=False).scores
        assert torch.allclose(alone, expected[:1], rtol=1e-4)  # a batch of one adds otherwise
    assert predictor.predict([], progress=False).names == []
    large = pil[0].resize((64, 48))
    assert predictor.predict(large, progress=False).scores.shape == (1, 10)


def test_a_progress_bar_counts_images(folder, capsys):
    load_run(folder).predict(test_images_of(0)[0][:5], batch_size=2)
    assert "5/5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("missing.png", r"'missing\.png' cannot be read"),
        (__file__, "cannot be read as an image"),
        (np.zeros((2, 8, 8), np.uint8), r"shape \[2, 8, 8\].*height, width, channels"),
        (torch.randn(3, 8, 8), "values from .* not normalised"),
        ([3], "int is not an image"),
    ],
    ids=["missing", "text", "shape", "normalised", "int"],
)
def test_what_is_not_an_image_is_refused(folder, image, message):
    with pytest.raises(ConfigurationError, match=message):
        load_run(folder).predict(image, progress=False)


def test_what_a_run_does_not_have_is_named(folder, icarl, tmp_path):
    with pytest.raises(ConfigurationError, match=r"phase=1: .* after phase 2 only.*--keep-phases"):
        load_run(icarl, 1)
    with pytest.raises(ConfigurationError, match=r"phase=-5"):
        load_run(folder, -5)
    with pytest.raises(ConfigurationError, match=r"config\.json does not exist.*lucir"):
        load_run(folder.parent)
    for name in ("config.json", "network.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    with pytest.raises(ConfigurationError, match="no phase of this run has ended"):
        load_run(tmp_path)
    with pytest.raises(ConfigurationError, match="by='nearest'"):
        load_run(folder).predict([], by="nearest")


class Mine(CifarResNet):
    """A network that this package cannot make by itself."""


def test_an_own_network_and_own_transforms_are_given_by_the_caller(tmp_path):
    normalise = transforms.Normalize(0.5, 0.5)
    chain = [transforms.ToTensor(), lambda image: normalise(image)]
    data = Data(**{**vars(digits()), "test_transforms": chain, "train_transforms": chain})
    small_run(tmp_path, METHODS["joint"], backbone=lambda: Mine(1, 10), data=data)
    with pytest.raises(ConfigurationError, match="backbone=…"):
        load_run(tmp_path)
    with pytest.raises(ConfigurationError, match="transform=…"):
        load_run(tmp_path, backbone=Mine(1, 10))
    predictor = load_run(tmp_path, backbone=Mine(1, 10), transform=transforms.Compose(chain))
    assert predictor.predicts_by == "head"
    images, wanted = test_images_of(2)
    found = predictor.predict(images, progress=False)
    wanted = [name.removeprefix("digit ") for name in wanted]
    assert accuracy(found.names, wanted) == pytest.approx(rows_of(tmp_path)[2]["head"]["all"])
    with pytest.raises(ConfigurationError, match="no means"):
        predictor.predict(images, by="nearest_mean")


def test_the_command_prints_the_best_classes_of_each_image(folder, tmp_path, capsys):
    arrays = test_images_of(2)[0][:2]
    for place, array in enumerate(arrays):
        Image.fromarray(array).save(tmp_path / f"{place}.png")
    expected = load_run(folder).predict(arrays, progress=False)
    main(["predict", str(folder), str(tmp_path / "1.png"), str(tmp_path), "--top", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(tmp_path / f"{n}.png") for n in (1, 0, 1)]
    for line, place in zip(lines, (1, 0, 1), strict=True):
        assert f"  {expected.names[place]} " in line
        assert line.count("digit") == 2
    (tmp_path / "empty").mkdir()
    for arguments in ([str(tmp_path / "empty")], [str(tmp_path / "none.png")]):
        with pytest.raises(SystemExit):
            main(["predict", str(folder), *arguments])
        assert "image" in capsys.readouterr().err


def test_class_names_are_known_for_the_datasets(tmp_path):
    assert load_data("digits").class_names == tuple("0123456789")
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name / "inner").mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / split / name / "inner" / "a.png")
    assert load_data("folder", tmp_path).class_names == ("cat", "dog")


def test_names_must_be_as_many_as_classes(tmp_path):
    with pytest.raises(ConfigurationError, match="class_names has 2 names: must have 10"):
        small_run(tmp_path, LUCIR(), class_names=["a", "b"])
    assert not list(tmp_path.iterdir())


def test_the_run_says_how_its_network_is_made(folder):
    network = json.loads((folder / "network.json").read_text(encoding="utf-8"))
    assert network["class_names"][0] == NAMES[scenarios(digits(), **SPLIT)[0].class_order[0]]
    assert [step["name"] for step in network["transforms"]] == ["ToTensor", "Normalize"]
    assert "CifarResNet" in json.dumps(network["backbone"])
