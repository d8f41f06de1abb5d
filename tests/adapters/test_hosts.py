"""HostAdapter on a made-up host, with the adapter of its own documentation."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from aanets_plugin import (
    ConfigurationError,
    NonFiniteLossError,
    PhaseError,
    UnsupportedModelError,
    levels,
)
from aanets_plugin.adapters import hosts
from aanets_plugin.adapters.hosts import HostAdapter
from aanets_plugin.baselines import CifarResNet
from tests.adapters.hosts_setup import EPOCHS, NEW, TASKS, Watched, images

# The memories of the stand-ins have 3 or 4 samples of a class.
pytestmark = pytest.mark.filterwarnings("ignore:.*have fewer than 5 samples")


class Learner:
    """A private codebase: a network, a loader, a memory, a method that trains a task."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = CifarResNet(1, TASKS * NEW)
        self.memory = None

    def train_task(self, task):
        x, y = map(torch.as_tensor, images(task))
        self.loader = DataLoader(TensorDataset(x, y), 4, shuffle=True)
        self.fit()
        keep = torch.arange(len(y)) % 2 == 0
        old = self.memory.tensors if self.memory else (x[:0], y[:0])
        self.memory = TensorDataset(torch.cat([old[0], x[keep]]), torch.cat([old[1], y[keep]]))

    def fit(self):
        optimizer = torch.optim.SGD(self.net.parameters(), 0.01)
        for _ in range(EPOCHS):
            for x, y in self.loader:
                optimizer.zero_grad()
                F.cross_entropy(self.net(x), y).backward()
                optimizer.step()


def documented():
    """The adapter in the module's docstring, with the name of this host's training method."""
    code = hosts.__doc__[hosts.__doc__.index("    class MyAdapter") :]
    lines = [line[4:] for line in code.splitlines()]
    assert len([line for line in lines if line]) <= 20
    scope = {"HostAdapter": HostAdapter}
    exec("\n".join(lines).replace("train_task", "fit"), scope)
    return scope["with_aanets"]


def test_the_documented_adapter_works():
    np.random.seed(0)
    learner = documented()(Learner())
    watched = Watched(learner)
    for task in range(TASKS):
        learner.train_task(task)
    watched.assert_balanced([EPOCHS, EPOCHS])
    assert all(level.alpha.tolist() != [0.5, 0.5] for level in levels(learner.net))


def test_imbalanced_data_are_all_that_the_host_has():
    np.random.seed(0)
    learner, seen = Learner(), []
    documented()(learner, balanced=False)
    adapter = learner.bilevel
    loss = adapter.loss_fn
    adapter.loss_fn = lambda model, batch: seen.append(batch[1]) or loss(model, batch)
    sizes = []
    for task in range(2):
        sizes.append(len(images(task)[1]) + (len(learner.memory) if learner.memory else 0))
        learner.train_task(task)
    assert sum(map(len, seen)) == EPOCHS * sizes[1]


def test_a_host_that_takes_another_network_is_told():
    learner = documented()(Learner())
    learner.net = CifarResNet(1, 4)
    with pytest.raises(PhaseError, match="another network now"):
        learner.train_task(0)


def test_a_teacher_inside_the_network_is_refused():
    learner = documented()(Learner())
    learner.train_task(0)
    learner.net.teacher = copy.deepcopy(learner.net)
    with pytest.raises(PhaseError, match="has 6 adaptive levels and had 3 before"):
        learner.train_task(1)


def test_a_copy_of_the_learner_which_would_train_the_learner_is_refused():
    learner = documented()(Learner())
    with pytest.raises(UnsupportedModelError, match=r"Learner\.fit cannot be copied"):
        copy.deepcopy(learner)
    assert len(levels(copy.deepcopy(learner.net))) == len(levels(learner.net))


def test_an_optimizer_from_before_the_conversion_trains_all_of_the_first_task():
    class Early(Learner):
        def __init__(self):
            super().__init__()
            self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)

        def fit(self):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                F.cross_entropy(self.net(x), y).backward()
                self.optimizer.step()

    plain, learner = Early(), documented()(Early())
    for each in (plain, learner):
        torch.manual_seed(0)
        each.train_task(0)
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(plain.net.eval()(x), learner.net.eval()(x))


@pytest.mark.parametrize("task", [0, 1])
def test_a_training_that_diverges_is_stopped(task):
    learner = documented()(Learner())
    for earlier in range(task):
        learner.train_task(earlier)
    learner.net.fc.weight.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(NonFiniteLossError, match=rf"Phase {task}, epoch 0: .*ower the learning"):
        learner.train_task(task)


@pytest.mark.parametrize(
    "options", [{"loss_fn": F.cross_entropy}, {"base_phase": 1}, {"batch_size": 0}, {"lr": "1"}]
)
def test_bad_options_are_refused_before_the_network_is_converted(options):
    learner = Learner()
    with pytest.raises(ConfigurationError, match=rf"^{next(iter(options))}="):
        documented()(learner, **options)
    assert not levels(learner.net)
