"""Class orders, splits into phases, and scenarios."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.datasets import Data, load_data, scenarios
from aanets_plugin.experiments.splits import check_split, paper_order, read_order
from tests.experiments.datasets_setup import arrays

# The order that class-incremental papers since iCaRL learn CIFAR-100 in.
PUBLISHED_ORDER = [68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89, 3, 92, 55, 9, 26, 80, 43, 38]


def test_half_of_the_classes_come_first_in_the_order_of_the_paper():
    data = load_data("digits")
    order = paper_order(10)
    for scenario, dataset in zip(scenarios(data, phases=5), (data.train, data.test), strict=True):
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


def test_an_order_of_ones_own_is_kept_in_both():
    order = [9, 1, 8, 2, 7, 3, 6, 4, 5, 0]
    for given in (order, np.array(order), torch.tensor(order)):
        for scenario in scenarios(load_data("digits"), base_classes=4, phases=3, order=given):
            assert scenario.increments == [4, 2, 2, 2]
            originals = scenario.get_original_targets(scenario[1].get_classes())
            assert originals.tolist() == [7, 3]


def test_training_is_augmented_and_testing_is_not():
    train, test = scenarios(load_data("digits"), phases=1)
    torch.manual_seed(0)
    assert len({tuple(train[0][0][0].flatten().tolist()) for _ in range(20)}) > 1
    assert len({tuple(test[0][0][0].flatten().tolist()) for _ in range(20)}) == 1


def test_the_order_of_the_paper_is_the_published_one():
    assert paper_order(100)[:20] == PUBLISHED_ORDER
    assert paper_order(100, seed=1994)[:20] != PUBLISHED_ORDER
    assert sorted(paper_order(1000)) == list(range(1000))


def test_the_global_state_of_numpy_is_left_alone():
    def after(action):
        np.random.seed(7)
        action()
        return np.random.random()

    untouched = after(lambda: None)
    assert after(lambda: scenarios(load_data("digits", per_class=3), phases=5)) == untouched
    assert after(lambda: np.random.shuffle(np.arange(10))) != untouched


def test_the_papers_splits():
    assert check_split(100, phases=25) == [50] + [2] * 25
    assert check_split(1000, phases=5) == [500] + [100] * 5
    assert check_split(100, base_classes=0, phases=10) == [10] * 10


@pytest.mark.parametrize(
    ("classes", "split", "parts"),
    [
        (100, {"phases": 7}, ["phases=7", "50 classes", "1, 2, 5, 10, 25, 50"]),
        (10, {"base_classes": 4, "phases": 4}, ["phases=4", "6 classes", "1, 2, 3, 6"]),
        (10, {"base_classes": 0, "phases": 3}, ["the 10 classes.", "1, 2, 5, 10"]),
        (7, {"phases": 1}, ["classes=7", "base_classes=4 and phases as one of 1, 3"]),
        (1, {"phases": 1}, ["base_classes=0 and phases=1"]),
        (10, {"base_classes": 10, "phases": 1}, ["base_classes=10", "from 0 to 9"]),
        (10, {"base_classes": -2, "phases": 1}, ["base_classes=-2"]),
        (10, {"base_classes": 2.5, "phases": 1}, ["base_classes=2.5"]),
        (10, {"phases": 0}, ["phases=0", "≥ 1"]),
        (10, {"phases": True}, ["phases=True"]),
        (0, {"phases": 1}, ["classes=0"]),
    ],
)
def test_an_impossible_split_says_what_would_do(classes, split, parts):
    with pytest.raises(ConfigurationError) as caught:
        check_split(classes, **split)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_increments_of_any_size_are_kept_in_both_scenarios():
    for scenario in scenarios(load_data("digits"), increments=[4, 1, 2, 3]):
        assert [len(set(taskset._y)) for taskset in scenario] == [4, 1, 2, 3]


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ({"increments": [4, 1, 2]}, ["increments=4,1,2", "add up to 7 classes, must be 10"]),
        ({"increments": [10, 0]}, ["increments=0", "≥ 1"]),
        ({"increments": [9, 1.0]}, ["increments=1.0"]),
        ({"increments": []}, ["add up to 0"]),
        ({"increments": [5, 5], "phases": 1}, ["phases=1", "increments=[5, 5]", "either"]),
        ({"increments": [5, 5], "base_classes": 5}, ["base_classes=5", "either"]),
        ({}, ["phases=None", "increments=None"]),
    ],
)
def test_increments_that_do_not_fit_are_refused(split, parts):
    with pytest.raises(ConfigurationError) as caught:
        scenarios(load_data("digits"), **split)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize("text", ["2, 0, 1", "2 0\n1\n", "[2, 0, 1]\n"])
def test_an_order_is_read_from_a_file(text, tmp_path):
    (tmp_path / "order.txt").write_text(text)
    assert read_order(str(tmp_path / "order.txt"), 3) == [2, 0, 1]


def test_an_order_by_another_seed_is_another_order():
    assert read_order("1993", 100)[:20] == PUBLISHED_ORDER
    assert read_order("7", 100) == paper_order(100, seed=7) != paper_order(100)


@pytest.mark.parametrize(("text", "part"), [("0 1 two", "'two'"), ("", "''"), ("0 -1", "'-1'")])
def test_a_file_of_something_else_is_told(text, part, tmp_path):
    (tmp_path / "order.txt").write_text(text)
    with pytest.raises(ConfigurationError, match=rf"order.txt' has {part}: must be"):
        read_order(str(tmp_path / "order.txt"), 3)
    with pytest.raises(ConfigurationError, match=r"no/such\.txt' cannot be read"):
        read_order("no/such.txt", 3)


def test_the_split_is_checked_before_the_data_is_touched():
    data = Data("mine", None, None, [], [], (3, 8, 8), 10)
    with pytest.raises(ConfigurationError, match="phases=4"):
        scenarios(data, phases=4)


@pytest.mark.parametrize(
    ("order", "parts"),
    [
        (range(9), ["missing: 9"]),
        ([0, 0, *range(2, 10)], ["missing: 1"]),
        ([*range(9), 10], ["missing: 9"]),
        ([*range(9), 9.5], ["missing: 9"]),
        ("0123456789", ["missing: 0, 1"]),
        ([], ["missing: 0, 1"]),
        ([*range(10), 0], ["missing: none"]),
    ],
)
def test_something_else_than_an_order_of_the_classes_is_refused(order, parts):
    with pytest.raises(ConfigurationError) as caught:
        scenarios(load_data("digits"), phases=5, order=order)
    parts = [*parts, "10 classes of digits"]
    assert all(part in str(caught.value) for part in parts), str(caught.value)
