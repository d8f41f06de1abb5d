"""The Continuum adapter with a real scenario and rehearsal memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("continuum")
pytest.importorskip("sklearn")

from continuum import ClassIncremental
from continuum.datasets import InMemoryDataset
from continuum.rehearsal import RehearsalMemory
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

import aanets_plugin
from aanets_plugin import BilevelStrategy, ConfigurationError, convert_to_aanet, experiments, levels
from aanets_plugin.adapters import continuum
from aanets_plugin.adapters.continuum import balanced_loader
from aanets_plugin.baselines import CifarResNet

pytestmark = pytest.mark.continuum


@pytest.fixture
def scenario():
    x, y = load_digits(return_X_y=True)
    images = np.repeat((x.reshape(-1, 8, 8, 1) * 15).astype(np.uint8), 3, axis=3)
    return ClassIncremental(InMemoryDataset(images, y), initial_increment=4, increment=3)


@pytest.fixture
def memory(scenario):
    memory = RehearsalMemory(50, "random", fixed_memory=True, nb_total_classes=10)
    memory.add(*scenario[0].get_raw_samples(), None)
    return memory


def labels(loader):
    return Counter(torch.cat([y for _, y, _ in loader]).tolist())


def test_every_class_old_and_new_comes_equally_often(scenario, memory):
    assert labels(balanced_loader(scenario[1], memory)) == dict.fromkeys(range(7), 5)
    assert labels(balanced_loader(scenario[1], memory, per_class=2)) == dict.fromkeys(range(7), 2)


def test_a_task_set_that_has_the_memory_already_does_not_get_it_twice(scenario, memory):
    taskset = scenario[1]
    taskset.add_samples(*memory.get())
    size = len(taskset)
    assert labels(balanced_loader(taskset, memory)) == dict.fromkeys(range(7), 5)
    assert len(taskset) == size


def test_the_task_set_is_left_as_it_is(scenario, memory):
    taskset = scenario[1]
    size, classes = len(taskset), taskset.get_classes().tolist()
    balanced_loader(taskset, memory)
    assert (len(taskset), taskset.get_classes().tolist()) == (size, classes)


def test_without_exemplars_the_classes_of_the_task_set_are_balanced(scenario):
    empty = RehearsalMemory(50, "random", fixed_memory=True, nb_total_classes=10)
    for memory in (None, empty):
        counts = labels(balanced_loader(scenario[0], memory))
        assert set(counts) == {0, 1, 2, 3}
        assert len(set(counts.values())) == 1


def test_a_generator_makes_the_same_draw_again(scenario, memory):
    def drawn(seed):
        loader = balanced_loader(scenario[1], memory, generator=torch.Generator().manual_seed(seed))
        return torch.cat([x for x, _, _ in loader])

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_more_than_the_memory_has_is_refused_by_class(scenario, memory):
    with pytest.raises(ConfigurationError, match="class"):
        balanced_loader(scenario[1], memory, per_class=6)


def test_something_else_than_a_task_set_is_refused():
    with pytest.raises(ConfigurationError, match="taskset is a list: must be a Continuum task set"):
        balanced_loader([1, 2, 3])


def test_alpha_learns_in_a_loop_over_a_scenario(scenario):
    model = CifarResNet(1, 10)
    bilevel = BilevelStrategy(convert_to_aanet(model))
    memory = RehearsalMemory(20, "random", fixed_memory=True, nb_total_classes=10)
    for taskset in scenario:
        fresh = taskset.get_raw_samples()
        balanced = balanced_loader(taskset, memory)
        if len(memory):
            taskset.add_samples(*memory.get())
        bilevel.begin_phase()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model.train()
        for x, y, _ in DataLoader(taskset, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        bilevel.after_epoch(balanced)
        bilevel.end_phase()
        memory.add(*fresh, None)
    assert [record.phase for record in bilevel.history] == [1, 1, 1, 2, 2, 2]
    assert any(level.alpha[0] != 0.5 for level in levels(model))


ALONE = """
import sys
import continuum as _  # imports matplotlib itself

for name in ("accelerate", "matplotlib", "timm", "tqdm"):
    sys.modules[name] = None
from aanets_plugin.adapters import continuum
from aanets_plugin.adapters.continuum import balanced_loader

assert not any(name.startswith("aanets_plugin.experiments") for name in sys.modules)
print(balanced_loader.__name__)
print(continuum.AANets().lr)
continuum.run
"""


def test_the_adapter_needs_torch_and_continuum_alone(tmp_path):
    """The names of the runner can be imported too, where their packages are installed."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(aanets_plugin.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["balanced_loader", str(aanets_plugin.AANetConfig().lr)]
    assert "import of accelerate halted" in done.stderr


@pytest.mark.parametrize("name", ["AANets", "Memory", "Result", "compare", "run", "scenarios"])
def test_names_of_the_runner_can_be_imported_from_the_adapter(name):
    assert getattr(continuum, name) is getattr(experiments, name)
    assert name in experiments.__all__


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = continuum.nothing
