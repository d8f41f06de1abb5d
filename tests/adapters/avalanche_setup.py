"""A small stream of digits, small networks and one way to run a strategy, for Avalanche's tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset
from avalanche.models import IncrementalClassifier, SCRModel
from avalanche.training import supervised
from avalanche.training.plugins import EWCPlugin, LwFPlugin, ReplayPlugin
from avalanche.training.supervised import SCR, ICaRL, Naive
from sklearn.datasets import load_digits
from torch import Tensor, nn

from aanets_plugin import levels
from aanets_plugin.adapters.avalanche import AANetPlugin
from aanets_plugin.scaling import scaled_layers

CLASSES, EXPERIENCES = 6, 3


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn(self.conv(x)))


class Backbone(nn.Module):
    """A stem and two stages for 8x8 images."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(Block(width))
        self.layer2 = nn.Sequential(Block(width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(torch.relu(self.bn1(self.conv1(x))))
        return self.layer2(nn.functional.max_pool2d(x, 2)).mean((2, 3))


class Network(nn.Module):
    """The backbone with a head that has all classes, or one that grows."""

    def __init__(self, grows: bool = False, width: int = 8) -> None:
        super().__init__()
        self.feature_extractor = Backbone(width)
        self.classifier = IncrementalClassifier(width, 2) if grows else nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.feature_extractor(x))


@functools.cache
def all_digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return x, torch.tensor(labels)


def digits(per_class: int = 10, size: int = 8, channels: int = 1, **options: Any) -> Any:
    """Three experiences of two classes each, `per_class` images of a class in both streams."""
    x, y = all_digits()
    x = x.repeat_interleave(size // 8, 2).repeat_interleave(size // 8, 3).repeat(1, channels, 1, 1)
    streams = []
    for start in (0, per_class):
        rows = torch.cat(
            [(y == c).nonzero().flatten()[start : start + per_class] for c in range(CLASSES)]
        )
        streams.append(_make_taskaware_tensor_classification_dataset(x[rows], y[rows]))
    options = {"task_labels": False, "shuffle": False, **options}
    return nc_benchmark(*streams, n_experiences=EXPERIENCES, **options)


def make(strategy: Callable[..., Any], model: nn.Module, **options: Any) -> Any:
    """A strategy with small batches, two epochs, plain SGD and no log."""
    settings: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "train_mb_size": 10,
        "train_epochs": 2,
        "eval_mb_size": 60,
        "evaluator": None,
    }
    if strategy is not ICaRL:  # it takes the parts of a model and has a loss of its own
        settings["model"] = model
    if strategy not in (ICaRL, SCR):
        settings["criterion"] = nn.CrossEntropyLoss()
    return strategy(**{**settings, **options})


OPTIONS: dict[str, dict[str, Any]] = {
    "Naive": {},
    "Replay": {"mem_size": 12},
    "LwF": {"alpha": 1.0, "temperature": 2.0},
    "EWC": {"ewc_lambda": 1.0},
    "MAS": {},
    "SynapticIntelligence": {"si_lambda": 1.0},
    "AGEM": {"patterns_per_exp": 10, "sample_size": 10},
    "GEM": {"patterns_per_exp": 10, "memory_strength": 0.5},
    "DER": {"mem_size": 12, "batch_size_mem": 4},
    "ER_ACE": {"mem_size": 12, "batch_size_mem": 4},
    "ER_AML": {"mem_size": 60, "batch_size_mem": 4, "train_mb_size": 5},
    "MIR": {"mem_size": 12, "batch_size_mem": 4, "subsample": 12},
    "GDumb": {"mem_size": 30},
    "Cumulative": {},
    "BiC": {"mem_size": 30, "stage_2_epochs": 2, "val_percentage": 0.2},
    "FromScratchTraining": {},
}
FIXED_HEAD = ("DER", "ER_ACE", "ER_AML")  # their losses compare outputs of different experiences


def wrapped(name: str) -> Callable[..., Any]:
    """A maker of one of the strategies that take a whole network."""

    def build(**options: Any) -> Any:
        net = Network(grows=name not in FIXED_HEAD)
        extra = {"feature_extractor": net.feature_extractor} if name == "ER_AML" else {}
        options = {**OPTIONS[name], **extra, **options}
        return make(getattr(supervised, name), net, **options)

    return build


def icarl(**options: Any) -> Any:
    net = Network()
    return make(
        ICaRL,
        net,
        feature_extractor=net.feature_extractor,
        classifier=net.classifier,
        memory_size=12,
        buffer_transform=None,
        fixed_memory=True,
        **options,
    )


def scr(**options: Any) -> Any:
    model = SCRModel(Network().feature_extractor, nn.Linear(8, 8))
    return make(SCR, model, mem_size=12, batch_size_mem=6, **options)


def combined(*names: str) -> Callable[..., Any]:
    """Naive with several plugins, AANetPlugin where its name stands."""

    def build(plugins: list[Any], **options: Any) -> Any:
        parts = {
            "aanet": plugins[0],
            "replay": ReplayPlugin(mem_size=12),
            "lwf": LwFPlugin(),
            "online ewc": EWCPlugin(1.0, mode="online", decay_factor=0.5),
        }
        mine = [parts[name] for name in names] + plugins[1:]
        return make(Naive, Network(grows=True), plugins=mine, **options)

    return build


STRATEGIES: dict[str, Callable[..., Any]] = {
    **{name: wrapped(name) for name in OPTIONS},
    "ICaRL": icarl,
    "SCR": scr,
    "replay + LwF": combined("aanet", "replay", "lwf"),
    "online EWC after AANets": combined("aanet", "online ewc", "replay"),
    "online EWC before AANets": combined("online ewc", "replay", "aanet"),
}


def alphas(model: nn.Module) -> list[list[float]]:
    return [level.alpha.tolist() for level in levels(model) if level.alpha is not None]


def assert_alpha_moved(plugin: AANetPlugin, phases: set[int]) -> None:
    """In every update of these phases and in no other, at every level; the weights sum to one."""
    history = plugin.bilevel.history
    assert {record.phase for record in history} == phases
    for level in levels(plugin.bilevel.model):
        weights = [level.initial_alpha, *(r.weights for r in history if r.level == level.name)]
        assert all(sum(w) == pytest.approx(1) for w in weights)
        assert all(weights[i] != weights[i + 1] for i in range(len(weights) - 1)), level.name
        assert level.alpha is not None
        assert tuple(level.alpha.tolist()) == weights[-1]


def phi(model: nn.Module) -> Tensor:
    """All scaling weights in one row; empty while there are none."""
    return torch.cat([torch.zeros(0), *(x.phi.detach().flatten() for x in scaled_layers(model))])


def accuracy(strategy: Any, stream: Any) -> float:
    """Of the strategy's own predictions in evaluation, over all samples of the stream."""
    right, total = 0, 0

    class Count:
        def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
            nonlocal right, total
            right += int((strategy.mb_output.argmax(1) == strategy.mb_y).sum())
            total += len(strategy.mb_y)

    strategy.plugins.append(counter := Count())
    strategy.eval(stream)
    strategy.plugins.remove(counter)
    return right / total


@torch.no_grad()
def outputs(model: nn.Module) -> Tensor:
    """Of the network in eval mode, for some images."""
    data = digits().test_stream[0].dataset
    return model.eval()(torch.stack([data[i][0] for i in range(12)]))


def train(strategy: Any, experiences: int = 3, **stream: Any) -> Any:
    """Train on the first experiences of a stream of digits; returns the strategy."""
    for experience in digits(**stream).train_stream[:experiences]:
        strategy.train(experience)
    return strategy
