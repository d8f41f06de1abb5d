"""Balanced subsets and the labels they are drawn by, against what they promise."""

from __future__ import annotations

import array
import collections
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import balanced_indices, balanced_subset, targets_of
from tests.core.exemplars_setup import LABELS, dataset_of, seeded


def counts_of(labels: torch.Tensor) -> dict[int, int]:
    return dict(collections.Counter(labels.tolist()))


class Images(Dataset[Any]):
    """Labels beside images that must not be decoded."""

    def __init__(self, n: int, **attributes: Any) -> None:
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("an image was decoded")


class Stream(IterableDataset[Any]):
    """An iterable dataset that knows its length, and so is told apart by its class alone."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a stream was read")


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


class TestBalancedSubset:
    def test_old_and_new_classes_get_the_same_number(self) -> None:
        memory, new = dataset_of([0, 1] * 6), dataset_of([2, 3, 3] * 30, start=100)
        subset = balanced_subset(new, memory, generator=seeded())
        drawn = [(int(x), int(y)) for x, y in subset]  # type: ignore[attr-defined]
        assert collections.Counter(y for _, y in drawn) == {0: 6, 1: 6, 2: 6, 3: 6}
        assert len({x for x, _ in drawn}) == 24
        assert targets_of(subset).tolist() == [y for _, y in drawn]

    def test_memory_is_thinned_to_per_class(self) -> None:
        memory, new = dataset_of([0, 1] * 6), dataset_of([2] * 30)
        subset = balanced_subset(new, memory, per_class=2, generator=seeded())
        assert counts_of(targets_of(subset)) == {0: 2, 1: 2, 2: 2}

    def test_a_class_in_both_parts_is_pooled(self) -> None:
        memory, new = dataset_of([0, 0, 1, 1, 1, 1]), dataset_of([0, 0, 2, 2, 2, 2, 2], start=100)
        subset: Any = balanced_subset(new, memory, generator=seeded())
        assert counts_of(targets_of(subset)) == {0: 4, 1: 4, 2: 4}
        assert {int(x) for x, y in subset if y == 0} == {0, 1, 100, 101}

    def test_without_exemplars_the_new_data_are_balanced(self) -> None:
        for memory in (None, dataset_of([])):
            subset = balanced_subset(dataset_of(LABELS), memory, generator=seeded())
            assert counts_of(targets_of(subset)) == {2: 3, 4: 3, 9: 3}

    def test_the_seed_decides_the_order(self) -> None:
        memory, new = dataset_of([0, 1] * 20), dataset_of([2] * 50)
        one, two, other = (
            targets_of(balanced_subset(new, memory, generator=seeded(seed))).tolist()
            for seed in (0, 0, 1)
        )
        assert one == two
        assert one != other
        assert one != sorted(one)

    def test_given_labels_replace_those_of_the_datasets(self) -> None:
        memory, new = dataset_of([5] * 4), dataset_of([9] * 6)
        subset = balanced_subset(
            new, memory, targets=[2] * 6, exemplar_targets=[0, 0, 1, 1], generator=seeded()
        )
        assert counts_of(targets_of(subset)) == {0: 2, 1: 2, 2: 2}

    def test_parts_with_items_of_another_form_are_refused(self) -> None:
        x, y = torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])
        triples, pairs = TensorDataset(x, x, y), TensorDataset(x, y + 2)
        with pytest.raises(
            ConfigurationError, match=r"exemplars are \(·, ·\) and those of dataset \(·, ·, ·\)"
        ):
            balanced_subset(triples, pairs)
        dicts = [{"x": row, "y": 1} for row in x]
        with pytest.raises(ConfigurationError, match=r"are \{'x': ·, 'y': ·\} and"):
            balanced_subset(pairs, dicts, exemplar_targets=[0] * 4)
        same: Any = balanced_subset(triples, TensorDataset(x, x, y + 2))
        assert len(same) == 8

    def test_comparing_items_does_not_move_random_numbers(self) -> None:
        class Augmented(Images):
            def __getitem__(self, index: int) -> Any:
                return torch.rand(2), 0

        before = torch.random.get_rng_state()
        balanced_subset(Augmented(4, targets=[0] * 4), Augmented(4, targets=[1] * 4))
        assert torch.equal(torch.random.get_rng_state(), before)

    @pytest.mark.parametrize("kind", ["pair", "images"])
    def test_arrays_are_not_a_dataset(self, kind: str) -> None:
        x, y = torch.zeros(4, 2, 2).numpy(), torch.tensor([0, 0, 1, 1]).numpy()
        arrays: Any = (x, y) if kind == "pair" else x
        with pytest.raises(ConfigurationError, match=r"exemplars is a .*: must be a dataset\."):
            balanced_subset(dataset_of([2] * 8), arrays)

    def test_a_dataset_that_contains_the_exemplars_needs_no_second_part(self) -> None:
        subset = balanced_subset(dataset_of([2] * 8 + [0] * 3), generator=seeded())
        assert counts_of(targets_of(subset)) == {0: 3, 2: 3}

    def test_a_loader_reads_it(self) -> None:
        subset = balanced_subset(dataset_of([2] * 8), dataset_of([0] * 4), generator=seeded())
        batches = list(DataLoader(subset, batch_size=4))
        assert [len(y) for _, y in batches] == [4, 4]

    def test_a_plain_list_of_samples_is_a_dataset(self) -> None:
        samples = ["a", "b", "c"]
        subset: Any = balanced_subset(samples, targets=[0, 0, 1], generator=seeded())
        assert sorted(subset) in (["a", "c"], ["b", "c"])

    def test_more_than_a_class_has_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="class 0 has 2 samples"):
            balanced_subset(dataset_of([2] * 8), dataset_of([0, 0]), per_class=5)

    @pytest.mark.parametrize("part", [Stream(), DataLoader(dataset_of([0])), None])
    def test_only_map_style_datasets_are_taken(self, part: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"dataset is a {type(part).__name__}"):
            balanced_subset(part, targets=[0])

    def test_exemplars_must_be_map_style_too(self) -> None:
        with pytest.raises(ConfigurationError, match="exemplars is a Stream: must be a map-style"):
            balanced_subset(dataset_of([0]), Stream(), exemplar_targets=[0])

    def test_labels_must_match_their_dataset(self) -> None:
        new, memory = dataset_of([2] * 8), dataset_of([0, 0])
        with pytest.raises(
            ConfigurationError, match=r"^targets has 7 labels, but the TensorDataset has 8"
        ):
            balanced_subset(new, memory, targets=[2] * 7)
        with pytest.raises(ConfigurationError, match="exemplar_targets has 3 labels, but"):
            balanced_subset(new, memory, exemplar_targets=[0] * 3)
        with pytest.raises(ConfigurationError, match="exemplar_targets was given without"):
            balanced_subset(new, exemplar_targets=[0])

    def test_a_list_of_samples_is_not_taken_for_labels(self) -> None:
        pairs = [(torch.zeros(3), 0), (torch.zeros(3), 1)]
        with pytest.raises(ConfigurationError, match="cannot be converted to integers"):
            balanced_subset(pairs)

    def test_nothing_to_choose_from_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="are empty"):
            balanced_subset(dataset_of([]), dataset_of([]))


def test_a_message_names_the_part_that_is_wrong_and_the_argument_for_its_labels():
    new = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
    memory = {0: torch.zeros(2, 3)}
    with pytest.raises(ConfigurationError, match=r"exemplars: A dict has no.*exemplar_targets="):
        balanced_subset(new, memory)
    with pytest.raises(ConfigurationError, match=r"dataset: A dict has no.* as targets="):
        balanced_subset(memory, new)


def test_a_memory_that_is_empty_counts_for_nothing():
    new = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
    for memory in (None, {}, []):
        assert len(balanced_subset(new, memory)) == 4
