"""Data in a run: exemplars, the balanced samples of α, image files, splits and class orders."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from aanets_plugin import MemoryBudget, convert_to_aanet
from aanets_plugin.baselines import LUCIR, ICaRL, Joint
from aanets_plugin.experiments import AANets, Memory, load_data, scenarios
from tests.experiments.run_setup import (
    EXEMPLARS,
    METHODS,
    MNEMONICS,
    TRAINING,
    digits,
    exemplar_counts,
    first_of_each,
    labels_of,
    rows_of,
    saved,
    small_run,
    unaugmented,
    watched_network,
)
from tests.networks import InPlaceNet


def images_of(train, label):
    """The training images of a class, as stored."""
    x, y, _ = train[:].get_raw_samples()
    return x[y == label]


# Memory


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "plain"
    small_run(folder)
    return folder


def test_every_class_has_the_exemplars_asked_for_and_they_are_its_own(plain):
    assert exemplar_counts(plain) == [EXEMPLARS] * 10
    kept = saved(plain)["exemplars"]
    train, _ = scenarios(digits(), base_classes=6, phases=2)
    for label in range(10):
        own = {image.tobytes() for image in images_of(train, label)}
        chosen = {image.numpy().tobytes() for image in kept["x"][kept["y"] == label]}
        assert len(chosen) == EXEMPLARS
        assert chosen <= own
        assert not chosen & {image.tobytes() for image in images_of(train, (label + 1) % 10)}


def test_a_memory_in_total_is_shared_by_the_classes_seen(tmp_path):
    small_run(tmp_path / "run", memory=Memory(total=47))
    assert exemplar_counts(tmp_path / "run") == [4] * 10
    # After phase 0 the 6 classes had 7 each: the 4 of each are the first of those.
    small_run(tmp_path / "seven", memory=Memory(per_class=7))
    few, many = (saved(tmp_path / name)["exemplars"] for name in ("run", "seven"))
    for label in range(6):
        first = many["x"][many["y"] == label][:4]
        assert torch.equal(few["x"][few["y"] == label], first)


def test_a_strict_memory_leaves_fewer_exemplars_beside_an_aanet(tmp_path):
    options = {"memory": Memory(per_class=15, strict=True), "backbone": InPlaceNet}
    small_run(tmp_path / "aanets", aanets=AANets(), **options)
    small_run(tmp_path / "plain", **options)
    left = MemoryBudget(15, 10, (3, 8, 8)).exemplars_for(convert_to_aanet(InPlaceNet()))
    assert 1 <= left < 15
    assert exemplar_counts(tmp_path / "aanets") == [left] * 10
    assert exemplar_counts(tmp_path / "plain") == [15] * 10


def test_classes_of_unequal_size_give_all_they_have_to_a_memory_in_total(tmp_path):
    order = list(range(10))
    data = dataclasses.replace(digits(), train=first_of_each(digits().train, [20] * 6 + [3] * 4))
    split = {"base_classes": 6, "phases": 2, "order": order}
    small_run(tmp_path / "run", aanets=AANets(), data=data, split=split, memory=Memory(total=60))
    assert exemplar_counts(tmp_path / "run") == [6] * 6 + [3] * 4


def test_joint_training_sees_all_data_in_every_phase_and_keeps_no_memory(tmp_path):
    seen, data = [], unaugmented(digits())
    small_run(tmp_path / "run", Joint(), data=data, backbone=watched_network(seen))
    train, _ = scenarios(data, base_classes=6, phases=2)
    labels = Counter(labels_of(torch.cat([x for why, x in seen if why == "train"]), train))
    assert labels == {**dict.fromkeys(range(6), 60), 6: 40, 7: 40, 8: 20, 9: 20}
    assert saved(tmp_path / "run")["exemplars"] is None


def test_joint_training_needs_no_samples_for_a_memory(tmp_path):
    few = dataclasses.replace(digits(), train=first_of_each(digits().train, [10] * 10))
    split = {"base_classes": 0, "phases": 1}
    small_run(tmp_path / "run", Joint(), data=few, split=split, memory=None)
    assert len(rows_of(tmp_path / "run")) == 1


# What the network sees


@pytest.mark.parametrize("name", ["lucir", "joint"])
def test_alpha_learns_on_all_classes_seen_equally(name, tmp_path):
    seen, data = [], unaugmented(digits())
    options = {"aanets": AANets(), "backbone": watched_network(seen)}
    small_run(tmp_path / "run", METHODS[name], data=data, **options)
    train, _ = scenarios(data, base_classes=6, phases=2)
    per_class = {"lucir": EXEMPLARS, "joint": 20}[name]  # the smallest class has so many
    labels = Counter(labels_of(torch.cat([x for why, x in seen if why == "alpha"]), train))
    assert labels == {**dict.fromkeys(range(8), 2 * per_class), 8: per_class, 9: per_class}
    trained = Counter(labels_of(torch.cat([x for why, x in seen if why == "train"]), train))
    assert len(set(trained.values())) > 1


def test_alpha_learns_on_all_training_data_if_it_is_not_to_be_balanced(tmp_path):
    seen, data = [], unaugmented(digits())
    options = {"aanets": AANets(balanced=False), "backbone": watched_network(seen)}
    small_run(tmp_path / "run", data=data, **options)
    train, _ = scenarios(data, base_classes=6, phases=2)
    labels = Counter(labels_of(torch.cat([x for why, x in seen if why == "alpha"]), train))
    old = {**dict.fromkeys(range(6), 2 * EXEMPLARS), 6: EXEMPLARS, 7: EXEMPLARS}
    new = dict.fromkeys(range(6, 10), 20)
    assert labels == Counter(old) + Counter(new)


def test_alpha_learns_on_as_many_of_each_class_as_asked_for(tmp_path):
    seen, data = [], unaugmented(digits())
    options = {"aanets": AANets(balanced_per_class=2), "backbone": watched_network(seen)}
    small_run(tmp_path / "run", data=data, **options)
    train, _ = scenarios(data, base_classes=6, phases=2)
    labels = Counter(labels_of(torch.cat([x for why, x in seen if why == "alpha"]), train))
    assert labels == {**dict.fromkeys(range(8), 4), 8: 2, 9: 2}


def test_a_phase_trains_on_its_new_samples_and_the_exemplars(tmp_path):
    seen, data = [], unaugmented(digits())
    small_run(tmp_path / "run", data=data, backbone=watched_network(seen))
    train, _ = scenarios(data, base_classes=6, phases=2)
    labels = Counter(labels_of(torch.cat([x for why, x in seen if why == "train"]), train))
    both = {6: 20 + EXEMPLARS, 7: 20 + EXEMPLARS, 8: 20, 9: 20}
    assert labels == {**dict.fromkeys(range(6), 20 + 2 * EXEMPLARS), **both}


# Splits and orders


def test_equal_phases_have_no_large_base(tmp_path):
    split = {"base_classes": 0, "phases": 5}
    result = small_run(tmp_path / "run", aanets=AANets(), split=split)
    assert result.classes == [2, 4, 6, 8, 10]
    assert [len(metrics["by_phase"]) for metrics in result.head] == [1, 2, 3, 4, 5]


def test_classes_arrive_in_the_order_given(tmp_path):
    order = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    split = {"base_classes": 6, "phases": 2, "order": order}
    small_run(tmp_path / "run", split=split)
    kept = saved(tmp_path / "run")["exemplars"]
    pixels, digit, _ = digits().train.get_data()
    for label, name in enumerate(order):
        own = {image.tobytes() for image in pixels[digit == name]}
        assert {image.numpy().tobytes() for image in kept["x"][kept["y"] == label]} <= own


# Picture files


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder dataset of noisy PNG files, 8 for training and 4 for testing per class."""
    root, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for label in range(4):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 120, (16, 16, 3)) + 30 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def picture_run(pictures, tmp_path_factory):
    data = load_data("folder", pictures, image_size=16)
    root = tmp_path_factory.mktemp("runs")

    def start(name, method, **options):
        split, memory = {"base_classes": 2, "phases": 2}, Memory(per_class=3)
        options = {"data": data, "split": split, "memory": memory, **options}
        return root / name, small_run(root / name, method, **options)

    return start


@pytest.mark.parametrize("arm", [None, AANets()], ids=["plain", "aanets"])
def test_picture_files_are_kept_by_their_paths(arm, picture_run, pictures):
    folder, result = picture_run(f"icarl-{arm is None}", ICaRL(), aanets=arm)
    assert result.classes == [2, 3, 4]
    kept = saved(folder)["exemplars"]
    train, _ = scenarios(load_data("folder", pictures), base_classes=2, phases=2)
    for label in range(4):
        own = {str(path) for path in images_of(train, label)}
        chosen = {path for path, y in zip(kept["x"], kept["y"], strict=True) if y == label}
        assert len(chosen) == 3
        assert chosen <= own


def test_learned_pictures_are_files_of_the_run_and_the_data_stay(picture_run, pictures):
    before = {path: path.read_bytes() for path in pictures.rglob("*.png")}
    folder, _ = picture_run("mnemonics", MNEMONICS)
    herded, _ = picture_run(
        "herded", dataclasses.replace(MNEMONICS, refine_steps=1, refine_lr=1e-9)
    )
    assert {path: path.read_bytes() for path in pictures.rglob("*.png")} == before
    kept = saved(folder)["exemplars"]
    assert kept["y"].tolist() == saved(herded)["exemplars"]["y"].tolist()
    files = [folder / "exemplars", *(folder / "exemplars").rglob("*.png")]
    assert {str(path) for path in files[1:]} == set(kept["x"])
    assert len(set(kept["x"])) == 12
    for path in kept["x"]:
        with Image.open(path) as picture:
            assert picture.size == (16, 16)


def test_learned_images_are_other_images_than_the_herded_ones(tmp_path):
    small_run(tmp_path / "learned", MNEMONICS)
    small_run(tmp_path / "herded", LUCIR())
    learned, herded = (saved(tmp_path / name)["exemplars"] for name in ("learned", "herded"))
    assert learned["x"].dtype == herded["x"].dtype == torch.uint8
    # The base is the same, and so is what was chosen there; then it was moved.
    base = herded["y"] < 6
    assert torch.equal(learned["y"], herded["y"])
    moved = (learned["x"][base] != herded["x"][base]).flatten(1).any(1)
    assert moved.all()
    distance = (learned["x"][base].float() - herded["x"][base].float()).flatten(1).norm(dim=1)
    between = torch.cdist(*[herded["x"][base].float().flatten(1)] * 2).fill_diagonal_(1e9)
    assert distance.median() < between.min(dim=1).values.median()


def test_mnemonics_by_default_moves_its_exemplars(tmp_path):
    split = {"base_classes": 0, "phases": 1}
    small_run(tmp_path / "learned", type(MNEMONICS)(), split=split)
    small_run(tmp_path / "herded", LUCIR(), split=split)
    learned, herded = (saved(tmp_path / name)["exemplars"] for name in ("learned", "herded"))
    assert (learned["x"] != herded["x"]).any()


@pytest.mark.parametrize(("batch_size", "sizes"), [(19, [19]), (18, [18, 2]), (20, [20])])
def test_a_last_batch_of_one_sample_is_left_out(batch_size, sizes, tmp_path):
    seen = []
    training = dataclasses.replace(TRAINING, batch_size=batch_size)
    split = {"base_classes": 0, "phases": 1}
    options = {"split": split, "training": training, "memory": Memory(per_class=2)}
    small_run(tmp_path, data=digits(2), backbone=watched_network(seen), **options)  # 20 images
    assert [len(images) for why, images in seen if why == "train"] == sizes
