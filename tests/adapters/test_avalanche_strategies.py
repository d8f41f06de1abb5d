"""Avalanche's strategies with AANetPlugin: three experiences of each, trained for real."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("avalanche")

from avalanche.models import IncrementalClassifier, MTSlimResNet18, SlimResNet18, make_icarl_net
from avalanche.models.pytorchcv_wrapper import resnet
from avalanche.training import supervised
from avalanche.training.supervised import JointTraining, Replay
from torch import nn

from aanets_plugin import levels
from aanets_plugin.adapters.avalanche import AANetPlugin
from tests.adapters.avalanche_setup import (
    CLASSES,
    OPTIONS,
    STRATEGIES,
    Network,
    accuracy,
    alphas,
    assert_alpha_moved,
    digits,
    make,
    phi,
)

pytestmark = pytest.mark.avalanche

NEEDS = {"GEM": "quadprog"}  # Avalanche calls this solver by name and does not require it


class Watch:
    """Notes how many levels have an α, by experience."""

    def __init__(self) -> None:
        self.levels_with_alpha: dict[int, int] = {}

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        count = len(alphas(strategy.model))
        self.levels_with_alpha[strategy.clock.train_exp_counter] = count


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_becomes_its_aanets_version(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"Avalanche's {name} needs {NEEDS[name]}")
    watch, benchmark = Watch(), digits()
    strategy = STRATEGIES[name](plugins=[plugin := AANetPlugin(), watch])

    for experience in benchmark.train_stream:
        strategy.train(experience)

    assert watch.levels_with_alpha == {0: 0, 1: 2, 2: 2}
    assert_alpha_moved(plugin, {1, 2})
    assert (phi(strategy.model) != 1).any()
    held = [id(p) for group in strategy.optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(map(id, strategy.model.parameters()))
    assert_depends_on_both_branches(strategy, benchmark)
    assert 0 <= accuracy(strategy, benchmark.test_stream) <= 1


def assert_depends_on_both_branches(strategy: Any, benchmark: Any) -> None:
    x = torch.stack([benchmark.test_stream[0].dataset[i][0] for i in range(4)])
    model = strategy.model.eval()
    before = model(x)
    assert torch.equal(model(x), before)
    for branch in ("stable", "plastic"):
        weight = next(getattr(levels(model)[0], branch).parameters())
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.mul_(1.5)
        assert not torch.equal(model(x), before), branch
        with torch.no_grad():
            weight.copy_(kept)


def test_joint_training_is_a_base_phase():
    benchmark = digits()
    strategy = make(JointTraining, Network(), plugins=[plugin := AANetPlugin()])
    strategy.train(benchmark.train_stream)

    assert plugin.bilevel.history == []
    assert alphas(strategy.model) == [[0.5, 0.5], [0.5, 0.5]]
    assert accuracy(strategy, benchmark.test_stream) > 0


def test_joint_training_of_a_trained_base_learns_alpha_on_all_classes(caplog):
    caplog.set_level("INFO", "aanets_plugin")
    plugin = AANetPlugin(base_phase=False)
    strategy = make(JointTraining, Network(), plugins=[plugin])
    strategy.train(digits().train_stream)

    assert_alpha_moved(plugin, {0})
    assert f"10 samples of each of {CLASSES} classes" in caplog.text


MODELS: dict[str, Callable[[], nn.Module]] = {
    "SlimResNet18": lambda: SlimResNet18(CLASSES, nf=2),
    "IcarlNet": lambda: make_icarl_net(CLASSES, n=2, c=3),
    "pytorchcv": lambda: resnet("cifar10", 20),
    "growing head": lambda: growing(SlimResNet18(CLASSES, nf=2)),
}


def growing(model: Any) -> nn.Module:
    model.linear = IncrementalClassifier(model.linear.in_features, 2)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_avalanches_own_models(name):
    benchmark = digits(per_class=4, size=32, channels=3)
    strategy = make(
        Replay, MODELS[name](), mem_size=8, plugins=[plugin := AANetPlugin()], train_epochs=1
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)

    assert_alpha_moved(plugin, {1, 2})
    assert (phi(strategy.model) != 1).any()
    assert 0 <= accuracy(strategy, benchmark.test_stream) <= 1


@pytest.mark.parametrize("name", ["Naive", "Replay", "LwF"])
def test_multi_task_models(name):
    benchmark = digits(
        per_class=4, size=32, channels=3, task_labels=True, class_ids_from_zero_in_each_exp=True
    )
    strategy = make(
        getattr(supervised, name),
        MTSlimResNet18(2, nf=2),
        plugins=[plugin := AANetPlugin()],
        **OPTIONS[name],
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)

    assert len(plugin.balanced.seen) == CLASSES, "a class is a label in a task"
    assert_alpha_moved(plugin, {1, 2})
    assert 0 <= accuracy(strategy, benchmark.test_stream) <= 1
