"""balanced_subset: which samples it takes, and what it refuses."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    TensorDataset,
)

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import balanced_subset, targets_of
from tests.core.exemplars_setup import LABELS, Images, Stream, counts_of, dataset_of, seeded


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

    def test_a_message_names_the_part_that_is_wrong_and_the_argument_for_its_labels(self) -> None:
        new = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
        memory = {0: torch.zeros(2, 3)}
        with pytest.raises(ConfigurationError, match=r"exemplars: A dict.*exemplar_targets="):
            balanced_subset(new, memory)
        with pytest.raises(ConfigurationError, match=r"dataset: A dict has no.* as targets="):
            balanced_subset(memory, new)

    def test_a_memory_that_is_empty_counts_for_nothing(self) -> None:
        new = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
        for memory in (None, {}, []):
            assert len(balanced_subset(new, memory)) == 4
