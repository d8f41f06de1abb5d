"""AANetPlugin and the parts of Avalanche around it: optimizer, repairs, streams."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch

pytest.importorskip("avalanche")

import dill
from avalanche.benchmarks import class_incremental_benchmark
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.models import SlimResNet18
from avalanche.training.plugins import BiCPlugin, LRSchedulerPlugin, ReplayPlugin, bic
from avalanche.training.supervised import (
    BiC,
    Naive,
)
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR
from torch.utils.data import TensorDataset

from aanets_plugin import (
    levels,
)
from aanets_plugin.adapters.avalanche import (
    AANetPlugin,
    repair_bic,
    repair_checkpoints,
)
from aanets_plugin.scaling import scaled_layers
from tests.adapters.avalanche_setup import (
    CLASSES,
    Network,
    assert_alpha_moved,
    digits,
    make,
    phi,
    train,
)

pytestmark = pytest.mark.avalanche


# -- the optimizer -------------------------------------------------------------------------------


class NoGradients:
    """So that weight decay alone moves the parameters."""

    def before_update(self, strategy: Any, **kwargs: Any) -> None:
        for parameter in strategy.model.parameters():
            parameter.grad.zero_()


def test_weight_decay_does_not_shrink_phi():
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    strategy = make(Naive, model, optimizer=optimizer, plugins=[AANetPlugin(), NoGradients()])
    train(strategy, 1)
    before = levels(model)[0].plastic[0].conv.weight.detach().clone()
    with pytest.warns(UserWarning, match="did not move"):
        strategy.train(digits().train_stream[1])

    assert bool((phi(model) == 1).all()), "φ has neither gradient nor decay here"
    assert levels(model)[0].plastic[0].conv.weight.norm() < 0.99 * before.norm()
    assert len(optimizer.param_groups) == 1


def test_parameter_groups_of_the_user_are_kept_and_phi_joins_the_right_one():
    model = SlimResNet18(CLASSES, nf=2)
    head = list(model.linear.parameters())
    backbone = [p for p in model.parameters() if not any(p is other for other in head)]
    groups = [
        {"params": backbone, "lr": 0.05, "weight_decay": 1e-4},
        {"params": head, "lr": 0.5},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    schedule = LRSchedulerPlugin(LambdaLR(optimizer, lambda epoch: 0.5**epoch))
    strategy = make(Naive, model, optimizer=optimizer, plugins=[AANetPlugin(), schedule])
    train(strategy, 2, per_class=4, size=32, channels=3)

    held = [set(map(id, group["params"])) for group in optimizer.param_groups]
    learned = set(map(id, model.parameters()))
    assert held == [learned - set(map(id, head)), set(map(id, head))]
    assert {id(layer.delta) for layer in scaled_layers(model)} <= held[0]
    assert bool((phi(model) != 1).any())


def test_the_state_of_the_optimizer_survives_for_parameters_that_stay():
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    strategy = train(make(Naive, model, optimizer=optimizer, plugins=[AANetPlugin()]), 1)

    kept = levels(model)[0].plastic[0].conv.weight
    assert optimizer.state[kept]["momentum_buffer"].abs().sum() > 0
    assert set(map(id, optimizer.state)) <= set(map(id, strategy.model.parameters()))


# -- Avalanche's own joints ----------------------------------------------------------------------


def test_bic_runs_on_current_torch(monkeypatch):
    if "verbose" in inspect.signature(MultiStepLR).parameters:
        pytest.skip("this torch needs no repair")
    monkeypatch.setattr(bic, "MultiStepLR", MultiStepLR)  # as Avalanche has it
    options = {"mem_size": 30, "stage_2_epochs": 1, "val_percentage": 0.2, "train_epochs": 1}
    with pytest.raises(TypeError, match="verbose"):
        train(make(BiC, Network(), **options), 2)

    repair_bic()
    strategy = train(make(BiC, Network(), **options), 2)
    assert next(p for p in strategy.plugins if isinstance(p, BiCPlugin)).bias_layer is not None


def test_optimizers_are_saved_by_the_name_of_their_class(monkeypatch):
    def comes_back() -> bool:
        try:
            return dill.loads(dill.dumps(torch.optim.SGD)) is torch.optim.SGD
        except pickle.PicklingError:
            return False

    for name in ("sgd", "optimizer"):
        monkeypatch.delattr(torch.optim, name, raising=False)  # as current torch has it
    assert not comes_back()
    repair_checkpoints()
    assert comes_back()


def test_streams_without_task_labels_and_evaluation_in_between():
    streams = {}
    for name, stream in (("train", digits().train_stream), ("test", digits().test_stream)):
        samples = [e.dataset[i][:2] for e in stream for i in range(len(e.dataset))]
        x, y = torch.stack([x for x, _ in samples]), torch.tensor([int(y) for _, y in samples])
        data = TensorDataset(x, y)
        data.targets = y
        streams[name] = as_classification_dataset(data)
    benchmark = class_incremental_benchmark(streams, num_experiences=3)
    plugins = [plugin := AANetPlugin(), ReplayPlugin(mem_size=12)]
    strategy = make(Naive, Network(), plugins=plugins, eval_every=1)
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[benchmark.test_stream])

    assert not hasattr(experience, "task_labels")
    assert_alpha_moved(plugin, {1, 2})
