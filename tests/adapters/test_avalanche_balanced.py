"""The data of α in Avalanche: from the memory that is there, as many of every class."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
import torch

pytest.importorskip("avalanche")

from avalanche.training import supervised
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.storage_policy import (
    ClassBalancedBuffer,
    ExemplarsBuffer,
    ReservoirSamplingBuffer,
)
from avalanche.training.supervised import DER, ER_ACE, Naive, Replay

from aanets_plugin import ConfigurationError
from aanets_plugin.adapters.avalanche import AANetPlugin
from tests.adapters.avalanche_setup import STRATEGIES, Network, digits, make

pytestmark = pytest.mark.avalanche


class Batches:
    """A loss that notes its batches and goes on with cross-entropy."""

    def __init__(self) -> None:
        self.phases: list[list[Any]] = []

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        self.phases[-1].append(batch)
        x, y, _ = batch
        return torch.nn.functional.cross_entropy(model(x), y)

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.phases.append([])

    def labels(self) -> list[Counter[int]]:
        """How many samples of each class, by update; the first experience has none."""
        return [Counter(int(y) for _, ys, _ in phase for y in ys) for phase in self.phases]


def run(strategy: Any, experiences: int = 3, **options: Any) -> Any:
    stream = digits(**options).train_stream[:experiences]
    for experience in stream:
        strategy.train(experience)
    return stream


def watched(strategy: Any = Naive, *others: Any, plugin: Any = None, **options: Any) -> Batches:
    batches = Batches()
    aanet = AANetPlugin(loss_fn=batches, **(plugin or {}))
    plugins = [aanet, batches, *others]
    run(make(strategy, Network(), plugins=plugins, train_epochs=1, **options))
    return batches


def per_class(counts: Counter[int], classes: int) -> int:
    assert sorted(counts) == list(range(classes))
    (number,) = set(counts.values())
    return number


SOURCES = {
    "Naive": "exemplars kept for α alone",
    "LwF": "exemplars kept for α alone",
    "Replay": "the storage policy of ReplayPlugin",
    "SCR": "the storage policy of ReplayPlugin",
    "BiC": "the storage policy of BiCPlugin",
    "MIR": "the storage policy of MIRPlugin",
    "DER": "the storage policy of DER",
    "ER_ACE": "the storage policy of ER_ACE",
    "ER_AML": "the storage policy of ER_AML",
    "AGEM": "the memory of AGEMPlugin",
    "ICaRL": "the data that ICaRL trains on",
    "GDumb": "the data that GDumb trains on",
    "Cumulative": "the data that Cumulative trains on",
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_source_is_told_once_in_a_sentence(name, caplog):
    caplog.set_level("INFO", "aanets_plugin")
    run(STRATEGIES[name](plugins=[AANetPlugin(per_class=2)], train_epochs=1), 3, per_class=6)

    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert told == (
        f"α learns on 2 samples of each of 4 classes: the old ones from {SOURCES[name]}, the new "
        f"ones from the current experience."
    )


def test_without_a_memory_a_few_exemplars_are_kept():
    base, second, third = watched(plugin={"per_class": 4}).labels()

    assert not base
    assert per_class(second, 4) == 4
    assert per_class(third, 6) == 4


def test_all_samples_of_new_and_stored_data_are_used_if_they_are_not_to_be_balanced():
    options = {"balanced": False, "per_class": 4}
    _, second, _ = watched(plugin=options).labels()

    assert second == {0: 4, 1: 4, 2: 10, 3: 10}


def test_the_smallest_class_sets_the_number():
    _, second, third = watched(Replay, mem_size=8).labels()

    assert per_class(second, 4) <= 4  # 8 exemplars of two classes, as the buffer drew them
    assert per_class(third, 6) <= 2
    assert per_class(watched().labels()[2], 6) == 10, "a class has ten images"


def test_new_classes_come_from_the_experience_and_old_ones_from_the_memory():
    batches = Batches()
    policy = ClassBalancedBuffer(max_size=8)
    replay = ReplayPlugin(mem_size=8, storage_policy=policy)
    aanet = AANetPlugin(loss_fn=batches)
    strategy = make(Naive, Network(), plugins=[aanet, batches, replay], train_epochs=1)
    first, second = digits().train_stream[:2]
    strategy.train(first)
    memory = pixels(policy.buffer)
    strategy.train(second)

    used = [(x.numpy().tobytes(), int(y)) for x, y, _ in each(batches.phases[1])]
    assert {x for x, y in used if y < 2} == memory < pixels(first.dataset)
    assert {x for x, y in used if y >= 2} <= pixels(second.dataset)


def pixels(data: Any) -> set[bytes]:
    return {data[i][0].numpy().tobytes() for i in range(len(data))}


def test_no_sample_comes_twice_where_the_memory_has_new_classes_too():
    batches = watched(ER_ACE, mem_size=60)  # it fills its memory before it trains

    used = [x.numpy().tobytes() for x, _, _ in each(batches.phases[1])]
    assert len(used) == len(set(used)) == 40


def each(batches: list[Any]) -> list[Any]:
    return [sample for batch in batches for sample in zip(*batch, strict=True)]


def test_a_given_policy_is_used_and_filled():
    policy = ClassBalancedBuffer(max_size=12)
    batches = watched(plugin={"storage_policy": policy})

    assert sorted(policy.buffer_groups) == [0, 1, 2, 3, 4, 5]
    assert len(policy.buffer) == 12
    assert [per_class(batches.labels()[1], 4), per_class(batches.labels()[2], 6)] == [6, 3]


class CountingBuffer(ClassBalancedBuffer):
    updates = 0

    def post_adapt(self, agent: Any, exp: Any) -> None:
        self.updates += 1
        super().post_adapt(agent, exp)


class OldBuffer(ClassBalancedBuffer):
    """Written for Avalanche before 0.6, where `update` filled a buffer."""

    post_adapt = ExemplarsBuffer.post_adapt

    def update(self, strategy: Any, **kwargs: Any) -> None:
        self.update_from_dataset(strategy.experience.dataset, strategy)


@pytest.mark.parametrize(
    "policy", [OldBuffer(12), CountingBuffer(12)], ids=["update", "post_adapt"]
)
def test_a_policy_is_filled_by_the_method_it_has_and_nothing_deprecated_is_called(policy):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*deprecated function update", DeprecationWarning)
        watched(plugin={"storage_policy": policy})

    assert sorted(policy.buffer_groups) == [0, 1, 2, 3, 4, 5]


def test_a_policy_that_another_plugin_fills_is_filled_once():
    alone, shared = CountingBuffer(12), CountingBuffer(12)
    watched(plugin={"storage_policy": alone})
    watched(Naive, ReplayPlugin(12, storage_policy=shared), plugin={"storage_policy": shared})

    assert alone.updates == shared.updates == 3


def test_a_given_policy_comes_before_the_one_of_the_strategy(caplog):
    caplog.set_level("INFO", "aanets_plugin")
    watched(DER, mem_size=6, plugin={"storage_policy": ClassBalancedBuffer(max_size=20)})

    assert "4 classes: the old ones from the storage policy given to AANetPlugin" in caplog.text


def test_old_classes_that_a_memory_lacks_are_told(caplog):
    class Forgetful(ReservoirSamplingBuffer):
        def post_adapt(self, agent: Any, exp: Any) -> None:
            only = [i for i, y in enumerate(exp.dataset.targets) if int(y) != 1]
            self.update_from_dataset(exp.dataset.subset(only))

    watched(plugin={"storage_policy": Forgetful(40)})

    assert "1 of 2 old classes have no sample in the storage policy given" in caplog.text
    assert "1 of 4 old classes" in caplog.text


def test_the_training_transforms_apply():
    stream = digits(train_transform=lambda x: x + 100).train_stream
    batches = Batches()
    plugins = [AANetPlugin(loss_fn=batches), batches, ReplayPlugin(mem_size=12)]
    strategy = make(Naive, Network(), plugins=plugins, train_epochs=1)
    for experience in stream[:2]:
        strategy.train(experience)

    assert all(x.min() >= 100 for x, _, _ in batches.phases[1])
    assert Counter(int(y) < 2 for _, y, _ in each(batches.phases[1]))[True] > 0


def test_the_batch_size_changes_batches_and_not_alpha():
    finals = {}
    for size in (None, 7):
        batches, torch_seed = Batches(), torch.manual_seed(3)
        aanet = AANetPlugin(loss_fn=batches, batch_size=size)
        model = Network()
        strategy = make(Naive, model, plugins=[aanet, batches], train_epochs=1)
        torch_seed.manual_seed(4)
        run(strategy, 2)
        finals[len(batches.phases[1][0][0])] = aanet.bilevel.history[-1].weights

    assert sorted(finals) == [7, 10]  # the strategy's own batches have 10
    assert finals[7] == pytest.approx(finals[10], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_class": 0}, "per_class=0: must be an integer ≥ 1"),
        ({"batch_size": 2.5}, "batch_size=2.5: must be an integer ≥ 1"),
        ({"storage_policy": [1, 2]}, r"storage_policy=\[1, 2\]: must be an Avalanche storage"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(ConfigurationError, match=message):
        AANetPlugin(**options)


def test_gem_keeps_tensors_that_serve_as_a_memory(caplog):
    pytest.importorskip("quadprog", reason="Avalanche's GEM needs it")
    caplog.set_level("INFO", "aanets_plugin")
    options = {"patterns_per_exp": 20, "memory_strength": 0.5}
    run(make(supervised.GEM, Network(), plugins=[AANetPlugin()], **options), 2)

    assert "the old ones from the memory of GEMPlugin" in caplog.text
