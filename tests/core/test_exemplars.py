"""Balanced indices and the labels they are drawn by, against what they promise."""

from __future__ import annotations

import array
import collections
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    Subset,
)

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import balanced_indices, balanced_subset, targets_of
from tests.core.exemplars_setup import LABELS, Images, counts_of, dataset_of, seeded


class LabelSequence(Sequence[int]):
    """Labels behind the sequence interface alone."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.reads = 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return self.values[index]


class TestBalancedIndices:
    @pytest.mark.filterwarnings("ignore:Class .* has one sample")
    @settings(deadline=None, max_examples=100)
    @given(labels=st.lists(st.integers(-3, 6), min_size=1, max_size=80), data=st.data())
    def test_every_class_gets_the_same_number(self, labels: list[int], data: st.DataObject) -> None:
        smallest = min(collections.Counter(labels).values())
        per_class = data.draw(st.none() | st.integers(1, smallest))
        seed = data.draw(st.integers(0, 2**32))

        chosen = balanced_indices(labels, per_class, seeded(seed))

        expected = smallest if per_class is None else per_class
        assert counts_of(torch.tensor(labels)[chosen]) == dict.fromkeys(labels, expected)
        assert chosen.dtype == torch.int64
        assert len(set(chosen.tolist())) == len(chosen)
        assert chosen.min() >= 0
        assert chosen.max() < len(labels)
        assert torch.equal(chosen, balanced_indices(labels, per_class, seeded(seed)))

    def test_another_seed_gives_another_order_and_another_draw(self) -> None:
        labels = torch.arange(200) % 4
        one, two = (balanced_indices(labels, 10, seeded(seed)) for seed in (0, 1))
        assert not torch.equal(one, two)
        assert set(one.tolist()) != set(two.tolist())

    def test_a_generator_moves_on_between_draws(self) -> None:
        labels, generator = torch.arange(200) % 4, seeded()
        one, two = (balanced_indices(labels, 10, generator) for _ in range(2))
        assert not torch.equal(one, two)

    def test_without_a_generator_the_global_seed_rules(self) -> None:
        labels = torch.arange(200) % 4
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            one = balanced_indices(labels)
            torch.manual_seed(3)
            two = balanced_indices(labels)
        assert torch.equal(one, two)

    @pytest.mark.parametrize("generator", [None, seeded()], ids=["none", "given"])
    def test_the_global_random_state_stays(self, generator: torch.Generator | None) -> None:
        before = torch.random.get_rng_state()
        balanced_indices(LABELS, generator=generator)
        balanced_subset(dataset_of([2] * 8), dataset_of([0] * 4), generator=generator)
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_a_small_class_gives_its_samples_more_than_once(self) -> None:
        labels = torch.tensor([0] * 30 + [1] * 2 + [2] * 9)
        with pytest.warns(UserWarning, match="1 of 3 classes have fewer than 5 samples"):
            chosen = balanced_indices(labels, generator=seeded(), min_per_class=5)
        assert counts_of(labels[chosen]) == {0: 5, 1: 5, 2: 5}
        of_class = [[i for i in chosen.tolist() if labels[i] == label] for label in range(3)]
        assert [len(set(indices)) for indices in of_class] == [5, 2, 5]
        assert sorted(collections.Counter(of_class[1]).values()) == [2, 3]

    def test_min_per_class_changes_nothing_where_every_class_has_as_many(self) -> None:
        expected = balanced_indices(LABELS, generator=seeded())
        actual = balanced_indices(LABELS, generator=seeded(), min_per_class=3)
        assert torch.equal(actual, expected)

    def test_min_per_class_allows_for_a_per_class_that_a_class_does_not_have(self) -> None:
        labels = torch.tensor([0] * 30 + [1] * 2)
        with pytest.raises(ConfigurationError, match="class 1 has 2 samples"):
            balanced_indices(labels, 7)
        with pytest.warns(UserWarning, match="fewer than 7"):
            assert counts_of(labels[balanced_indices(labels, 7, min_per_class=1)]) == {0: 7, 1: 7}

    def test_min_per_class_is_at_most_what_the_largest_class_has(self) -> None:
        with pytest.warns(UserWarning, match="fewer than 3"):
            assert len(balanced_indices([0, 0, 0, 1], min_per_class=5)) == 6

    def test_a_class_with_one_sample_beside_large_ones_is_noticed(self) -> None:
        with pytest.warns(UserWarning, match="Class 1 has one sample"):
            assert len(balanced_indices([0] * 10 + [1])) == 2
        assert len(balanced_indices([0] * 10 + [1, 1])) == 4

    def test_classes_are_mixed(self) -> None:
        labels = torch.arange(2).repeat_interleave(500)
        drawn = labels[balanced_indices(labels, generator=seeded())]
        # Sorted by class this would be 1; at random about 500 with a deviation of about 16.
        assert int((drawn[1:] != drawn[:-1]).sum()) > 400

    def test_every_sample_of_a_class_is_equally_likely(self) -> None:
        labels, generator = [0] * 5 + [1], seeded()
        draws = torch.cat([balanced_indices(labels, 1, generator) for _ in range(2000)])
        # 400 expected for each of the five, with a standard deviation of 18: six of them.
        assert ((draws.bincount()[:5] - 400).abs() < 110).all()

    def test_the_form_of_the_targets_does_not_matter(self) -> None:
        expected = balanced_indices(torch.tensor(LABELS), 2, seeded())
        numpy = pytest.importorskip("numpy")
        for targets in (LABELS, tuple(LABELS), numpy.array(LABELS), dataset_of(LABELS)):
            assert torch.equal(balanced_indices(targets, 2, seeded()), expected)

    def test_an_integer_of_another_type_counts_as_an_integer(self) -> None:
        number: Any = torch.tensor(2)
        chosen = balanced_indices(LABELS, number, seeded())
        assert torch.equal(chosen, balanced_indices(LABELS, 2, seeded()))

    def test_asking_for_more_than_a_class_has_names_the_class(self) -> None:
        message = r"per_class=4: must be ≤ 3.* class 9 has 3 samples \(1 of 3 .*Lower per_class"
        with pytest.raises(ConfigurationError, match=message):
            balanced_indices(LABELS, 4)

    def test_the_class_named_is_the_one_with_the_fewest(self) -> None:
        with pytest.raises(ConfigurationError, match=r"class 7 has 1 samples \(3 of 3"):
            balanced_indices([1, 1, 5, 5, 7], 9)

    @pytest.mark.parametrize("per_class", [0, -1, 1.0, "2", True])
    def test_per_class_must_be_a_positive_integer(self, per_class: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"per_class={per_class!r}.*≥ 1"):
            balanced_indices(LABELS, per_class)

    @pytest.mark.parametrize("targets", [[], torch.empty(0, dtype=torch.int64), dataset_of([])])
    def test_empty_targets_are_refused(self, targets: Any) -> None:
        with pytest.raises(ConfigurationError, match="targets is empty"):
            balanced_indices(targets)

    def test_a_million_samples_take_no_loop(self) -> None:
        labels = torch.randint(0, 300, (1_000_000,), generator=seeded())
        start = time.perf_counter()
        chosen = balanced_indices(labels, 20, seeded())
        # About 0.1 s on one core; a Python loop over the samples takes many times that.
        assert time.perf_counter() - start < 3
        assert len(chosen) == 6000


class TestTargetsOf:
    @pytest.mark.parametrize("attribute", ["targets", "labels", "_labels", "_y", "y"])
    @pytest.mark.parametrize("form", [list, tuple, torch.tensor, LabelSequence])
    def test_labels_are_found_without_decoding_an_image(self, attribute: str, form: Any) -> None:
        images = Images(len(LABELS), **{attribute: form(LABELS)})
        assert targets_of(images).tolist() == LABELS

    @pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "uint16", ">i4"])
    def test_arrays_of_any_integer_type_are_read(self, dtype: str) -> None:
        numpy = pytest.importorskip("numpy")
        labels = numpy.array(LABELS, dtype=dtype)
        labels.setflags(write=False)
        assert targets_of(labels).tolist() == LABELS
        assert targets_of(labels[::-1]).tolist() == LABELS[::-1]

    def test_other_sequences_of_integers_are_read(self) -> None:
        assert targets_of(range(3)).tolist() == [0, 1, 2]
        assert targets_of(LabelSequence(LABELS)).tolist() == LABELS
        assert targets_of(LabelSequence([])).tolist() == []
        assert targets_of([torch.tensor(4), torch.tensor(9)]).tolist() == [4, 9]
        assert targets_of(Images(2, targets=array.array("i", [4, 9]))).tolist() == [4, 9]

    def test_a_subset_gives_the_labels_of_its_indices(self) -> None:
        images = Images(len(LABELS), targets=LABELS)
        for indices in ([10, 0, 2], range(3), torch.tensor([5, 5])):
            subset: Subset[Any] = Subset(images, indices)  # type: ignore[arg-type]
            assert targets_of(subset).tolist() == [LABELS[i] for i in indices]
        assert targets_of(Subset(Subset(images, [10, 0, 2]), [2, 1])).tolist() == [9, 4]
        assert targets_of(Subset(images, [])).tolist() == []

    def test_a_concatenation_gives_the_labels_of_its_parts_in_order(self) -> None:
        parts = [Images(2, labels=[1, 2]), Subset(dataset_of([7, 8]), [1]), dataset_of([3])]
        nested: ConcatDataset[Any] = ConcatDataset([ConcatDataset(parts[:2]), parts[2]])
        assert targets_of(nested).tolist() == [1, 2, 8, 3]

    def test_labels_set_on_a_subset_win_over_those_inside(self) -> None:
        subset: Any = Subset(dataset_of([7, 8, 9]), [0, 1])
        subset.targets = [0, 1]
        assert targets_of(subset).tolist() == [0, 1]

    def test_a_place_that_holds_something_else_is_passed_over(self) -> None:
        names_first = Images(3, targets=None, labels=["cat", "dog"], _y=[1, 0, 1])
        assert targets_of(names_first).tolist() == [1, 0, 1]
        inherited: Any = Subset(dataset_of([7, 8, 9]), [2, 0])
        inherited.targets = [7, 8, 9]  # of the whole, as a wrapper that forwards attributes has it
        assert targets_of(inherited).tolist() == [9, 7]

    def test_the_result_is_a_copy(self) -> None:
        labels = torch.tensor(LABELS)
        targets_of(labels).zero_()
        assert labels.tolist() == LABELS

    def test_a_dataset_without_labels_says_where_it_looked(self) -> None:
        with pytest.raises(
            ConfigurationError, match=r"Images has no class labels in \.targets.*targets="
        ):
            targets_of(Images(3))
        with pytest.raises(ConfigurationError, match="Images"):
            targets_of(Subset(Images(3), [0]))

    def test_a_sequence_of_samples_is_not_read_through(self) -> None:
        samples = LabelSequence([(torch.zeros(3), 0), (torch.zeros(3), 1)])
        with pytest.raises(ConfigurationError, match="its first item"):
            targets_of(samples)
        assert samples.reads == 1

    def test_labels_of_the_wrong_length_are_explained(self) -> None:
        message = r"Images\.targets has 2 labels, but the Images has 3"
        with pytest.raises(ConfigurationError, match=message):
            targets_of(Images(3, targets=[0, 1]))

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            (torch.eye(3, dtype=torch.int64), r"shape \(3, 3\).*argmax"),
            ([[1], [2]], r"shape \(2, 1\)"),
            (torch.tensor(3), r"shape \(\)"),
            ([0.5, 1.5], r"dtype torch\.float32.*\.long\(\)"),
            (torch.tensor([True, False]), r"dtype torch\.bool"),
            (["cat", "dog"], "list that cannot be converted to integers"),
            ([2**80], "list that cannot be converted to integers"),
            ("cat", "A str has no class labels"),
            (None, "A NoneType has no class labels"),
        ],
    )
    def test_what_is_not_a_vector_of_integers_is_refused(self, targets: Any, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            targets_of(targets)

    def test_an_array_of_words_is_refused(self) -> None:
        numpy = pytest.importorskip("numpy")
        with pytest.raises(
            ConfigurationError, match="ndarray that cannot be converted to integers"
        ):
            targets_of(numpy.array(["cat", "dog"]))
