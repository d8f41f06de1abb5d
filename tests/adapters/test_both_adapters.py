"""LUCIR on Avalanche and on Continuum: the same first loss, the same rule for nearest means."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("avalanche")
pytest.importorskip("continuum")
pytest.importorskip("accelerate")
pytest.importorskip("torchvision")

from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset
from torch import Tensor
from torchvision.transforms import Compose, RandomHorizontalFlip

from aanets_plugin import baselines
from aanets_plugin.adapters.avalanche import LUCIR, AANetPlugin, incremental
from aanets_plugin.adapters.continuum.memory import with_samples
from aanets_plugin.baselines.lifecycle import MethodLoss
from aanets_plugin.experiments import AANets, Memory, phase_end, scenarios
from aanets_plugin.experiments.phase_end import remember
from aanets_plugin.experiments.runner import Run
from tests.adapters import avalanche_setup
from tests.experiments.run_setup import TRAINING, digits, network, unaugmented

pytestmark = [pytest.mark.avalanche, pytest.mark.continuum]


def images_and_labels(data: Any) -> tuple[Tensor, Tensor]:
    x, y, *_ = zip(*(data[i] for i in range(len(data))), strict=True)
    return torch.stack(x), torch.tensor([int(label) for label in y])


def benchmark_of(streams: Any) -> Any:
    """A benchmark of Avalanche with the samples of two scenarios of Continuum."""
    data = []
    for scenario in streams:
        parts = zip(*map(images_and_labels, scenario), strict=True)
        data.append(_make_taskaware_tensor_classification_dataset(*map(torch.cat, parts)))
    return nc_benchmark(
        *data, n_experiences=3, per_exp_classes={0: 6}, task_labels=False, shuffle=False
    )


def trained_base(benchmark: Any, plugins: list[Any], **options: Any) -> LUCIR:
    """LUCIR after the first experience."""
    torch.manual_seed(0)
    model = network()
    strategy = LUCIR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        mem_size_per_class=5,
        train_mb_size=32,
        plugins=plugins,
        evaluator=None,
        **options,
    )
    strategy.train(benchmark.train_stream[0])
    return strategy


class OneBatch:
    """Puts one batch in place of all others of the second experience, and notes the first loss."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.batch = [x, y, torch.zeros_like(y)]
        self.losses: list[float] = []

    def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        if strategy.teacher is not None:
            strategy.mbatch = self.batch

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        if strategy.teacher is not None:
            self.losses.append(strategy.loss.item())
            self.head = getattr(self, "head", strategy.net.fc.weight.detach().clone())


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Continuum's runner trains on: images, labels, loss and the weights of the head."""
    found: list[Any] = []
    forward: Callable[..., Tensor] = MethodLoss.forward

    def noted(loss_module: Any, x: Tensor, y: Tensor, *output: Any) -> Tensor:
        loss = forward(loss_module, x, y, *output)
        if not output:  # the Avalanche strategies pass the output of the network
            found.append((x, y, loss.item(), loss_module.net.fc.weight.detach().clone()))
        return loss

    monkeypatch.setattr(MethodLoss, "forward", noted)
    return found


@pytest.mark.parametrize("aanets", [False, True], ids=["plain", "aanets"])
def test_the_loss_of_the_first_incremental_batch(aanets, batches, tmp_path):
    streams = scenarios(unaugmented(digits()), base_classes=6, phases=2)
    benchmark = benchmark_of(streams)

    run = Run(
        *streams,
        network,
        baselines.LUCIR(),
        aanets=AANets() if aanets else None,
        memory=Memory(per_class=5),
        training=dataclasses.replace(TRAINING, channels_last=False),  # as in Avalanche
        output=tmp_path,
        progress=False,
    )
    state = trained_base(benchmark, []).model.state_dict()
    own = {name: value for name, value in state.items() if name != "columns"}
    run.state.net.load_state_dict(own)
    run.has_base = True
    run._learn(0)
    remember(run.state, run.trainer, run.phases, 0, tmp_path)
    assert not batches, "the base is not trained again"
    run._learn(1)
    x, y, loss, head = batches[0]
    assert 0 < (y < 6).sum() < len(y), "exemplars and new samples"

    found = {}
    for name, method in {
        "the same": baselines.LUCIR(),
        "control": baselines.LUCIR(ranking_weight=0.0),
    }.items():
        batch = OneBatch(x, y)
        plugins = [AANetPlugin(), batch] if aanets else [batch]
        strategy = trained_base(benchmark, plugins, method=method)
        exemplars = strategy.storage_policy.buffer
        strategy.train(benchmark.train_stream[1])
        found[name] = batch.losses[0]

    old = with_samples(run.phases.train(0), run.state.exemplars.get())
    assert pixels(old) == pixels(exemplars)
    # Features are computed in batches of different sizes, in float32.
    assert torch.allclose(batch.head, head, rtol=1e-5, atol=1e-6), "imprinted alike"
    assert found["the same"] == pytest.approx(loss, rel=1e-5)
    assert found["control"] != pytest.approx(loss, rel=1e-2)


def pixels(data: Any) -> set[bytes]:
    return {image.numpy().tobytes() for image in images_and_labels(data)[0]}


# Nearest means


def means_of_continuum(folder: Any, flip: list[Any]) -> tuple[Any, Any]:
    """Run LUCIR with these transforms before the usual ones; returns network and exemplars."""
    data = digits()
    data = dataclasses.replace(data, train_transforms=[*flip, *data.test_transforms])
    streams = scenarios(data, base_classes=6, phases=2)
    options = {"memory": Memory(per_class=5), "training": TRAINING, "progress": False}
    run = Run(*streams, network, baselines.LUCIR(), output=folder, **options)
    run.finish()
    return run.state.net, with_samples(run.phases.test_so_far(0), run.state.exemplars.get())


def means_of_avalanche(folder: Any, flip: list[Any]) -> tuple[Any, Any]:
    """The same on Avalanche, where transforms are nested in a group of each experience."""
    benchmark = avalanche_setup.digits(train_transform=Compose([Compose(flip)]))
    model = avalanche_setup.Network()
    strategy = LUCIR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        predict_by="nearest_mean",
        mem_size_per_class=4,
        train_mb_size=10,
        evaluator=None,
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    strategy.eval(benchmark.test_stream)
    return strategy.net, strategy.storage_policy.buffer.eval()


@pytest.mark.parametrize("flips", [True, False], ids=["flip", "no flip"])
@pytest.mark.parametrize("means_of", [means_of_continuum, means_of_avalanche])
def test_nearest_means_use_mirrored_exemplars_if_training_mirrors(
    means_of, flips, monkeypatch, tmp_path
):
    calls: list[tuple[Tensor, ...]] = []

    def noted(*features: Tensor) -> Any:
        calls.append(features)
        return baselines.class_means(*features)

    for module in (phase_end, incremental):
        monkeypatch.setattr(module, "class_means", noted)
    net, exemplars = means_of(tmp_path, [RandomHorizontalFlip()] if flips else [])

    images, labels = images_and_labels(exemplars)
    with torch.no_grad():
        straight, mirrored = (net.eval().features(x) for x in (images, images.flip(-1)))
    features, targets, flipped = calls[-1]
    assert torch.equal(targets, labels)
    # Batches of another size: rounding only.
    torch.testing.assert_close(features, straight, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(straight, mirrored, atol=1e-3)
    if flips:
        torch.testing.assert_close(flipped, mirrored, rtol=1e-4, atol=1e-5)
    else:
        assert flipped is None
