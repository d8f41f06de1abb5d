"""The curves of a run in TensorBoard and in W&B, and what a run is computed with."""

from __future__ import annotations

import json
import time

import pytest
import torch
from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType, TorchDynamoPlugin
from torch import nn

from aanets_plugin import convert_to_aanet, freeze_base
from aanets_plugin.baselines import LUCIR, CifarResNet
from aanets_plugin.baselines.lifecycle import build_network
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments import AANets, Training
from aanets_plugin.experiments.channels_last import allows_channels_last, to_channels_last
from aanets_plugin.experiments.trackers import TRACKERS, tracker_options
from aanets_plugin.experiments.trainer import Trainer, default_accelerator
from tests.experiments.run_setup import TRAINING, network, rows_of, saved, small_run

SPLIT = {"base_classes": 6, "phases": 1}


def config_of(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


# -- trackers --------------------------------------------------------------------------------------


def test_tensorboard_gets_loss_alpha_and_accuracy_of_every_epoch(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accelerator = default_accelerator(**tracker_options(["tensorboard"]))
    training = Training(epochs=2, base_epochs=1, batch_size=32, lr=0.05)
    options = {"aanets": AANets(), "training": training, "split": SPLIT}
    small_run(tmp_path / "run", accelerator=accelerator, **options)

    events = accumulators.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "aanets"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [0, 1, 2]
    assert [event.step for event in events.Scalars("alpha/layer1")] == [1, 2]
    accuracies = [(event.step, event.value) for event in events.Scalars("accuracy/head")]
    expected = [row["head"]["all"] for row in rows_of(tmp_path / "run")]
    assert accuracies == [(0, pytest.approx(expected[0])), (2, pytest.approx(expected[1]))]


@pytest.mark.slow
def test_wandb_gets_them_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    accelerator = default_accelerator(**tracker_options(["wandb"]))
    small_run(tmp_path / "run", accelerator=accelerator, split=SPLIT)

    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    end = time.monotonic() + 60
    while b"accuracy/head" not in (content := file.read_bytes()):  # another process writes it
        assert time.monotonic() < end, content
        time.sleep(0.1)
    assert b"training/batch_size" in content
    assert b"alpha/" not in content, "the plain network has none"


def test_a_tracker_whose_package_is_missing_is_told():
    available = {str(tracker) for tracker in get_available_trackers()}
    missing = next(name for name in TRACKERS if name not in available)
    with pytest.raises(ConfigurationError, match=f"--log-with {missing}: needs the package"):
        tracker_options([missing])
    assert str(LoggerType.TENSORBOARD) in TRACKERS


# -- memory format ---------------------------------------------------------------------------------


class Viewing(nn.Module):
    """Reads its feature map as memory."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        x = self.conv(x)
        return x.view(len(x), -1)


class Silent(Viewing):
    """The same without an error: the order of the values changes."""

    def forward(self, x):
        x = self.conv(x)
        return torch.as_strided(x, (len(x), x[0].numel()), (x.stride(0), 1))


def test_channels_last_where_the_network_allows_for_it():
    assert allows_channels_last(CifarResNet(1, 10), (3, 8, 8))
    assert not allows_channels_last(Viewing(), (3, 8, 8))
    assert not allows_channels_last(Silent(), (3, 8, 8))
    assert not allows_channels_last(nn.Linear(8, 2), (8,))
    net = CifarResNet(1, 10)
    to_channels_last(net)
    assert net.conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_run_has_its_channels_last_and_computes_the_same_up_to_rounding(tmp_path):
    options = {"aanets": AANets(), "split": SPLIT}
    small_run(tmp_path / "last", **options)
    first = Training(**{**vars(TRAINING), "channels_last": False})
    small_run(tmp_path / "first", training=first, **options)

    kernels = {}
    for name, is_last in (("last", True), ("first", False)):
        assert config_of(tmp_path / name)["channels_last"] == is_last
        state = saved(tmp_path / name)["net"]
        for branch in (0, 1):
            kernel = state[f"backbone.layer2.branches.{branch}.0.conv2.weight"]
            assert kernel.is_contiguous(memory_format=torch.channels_last) == is_last
            kernels[name, branch] = kernel
    # A few steps of training make more of a rounding.
    torch.testing.assert_close(kernels["last", 0], kernels["first", 0], rtol=0.01, atol=0.01)
    assert not torch.equal(kernels["last", 0], kernels["last", 1])


def test_a_run_of_before_goes_on_as_it_began(tmp_path):
    first = Training(**{**vars(TRAINING), "channels_last": False})
    small_run(tmp_path / "run", training=first, split=SPLIT)
    config = config_of(tmp_path / "run")
    for key in ("channels_last", "compile"):
        del config[key]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigurationError, match="channels_last: False there, True now"):
        small_run(tmp_path / "run", split=SPLIT, resume=True)
    small_run(tmp_path / "run", training=first, split=SPLIT, resume=True)
    assert config_of(tmp_path / "run")["compile"] == "no"


# -- torch.compile ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_compiled_run_gives_the_same_results_up_to_rounding(tmp_path):
    options = {"aanets": AANets(), "split": SPLIT}
    small_run(tmp_path / "eager", **options)
    # Everything but the making of kernels, which takes a minute.
    accelerator = default_accelerator(dynamo_plugin=TorchDynamoPlugin(backend="eager"))
    small_run(tmp_path / "compiled", accelerator=accelerator, **options)

    assert config_of(tmp_path / "compiled")["compile"] == "eager"
    eager, compiled = (saved(tmp_path / arm)["net"] for arm in ("eager", "compiled"))
    assert compiled.keys() == eager.keys()
    for name, value in eager.items():
        # A few steps of training make more of a rounding.
        torch.testing.assert_close(compiled[name], value, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("compiles", [False, True])
def test_networks_that_only_predict_are_folded_in_a_compiled_run(compiles):
    net = build_network(network, LUCIR(), 6, (3, 8, 8))
    freeze_base(convert_to_aanet(net.backbone))
    trainer = Trainer(default_accelerator(compiles=compiles), TRAINING, seed=0, progress=False)
    x = torch.rand(4, 3, 8, 8)

    teacher = trainer.frozen_copy(net)
    norms = [module for module in teacher.modules() if isinstance(module, nn.BatchNorm2d)]
    assert (not norms) == compiles
    assert not any(p.requires_grad for p in teacher.parameters())
    assert any(p.requires_grad for p in net.parameters())
    features = trainer.features(net, [(image, 0) for image in x]).features
    with torch.no_grad():
        expected = net.eval().features(x)
        torch.testing.assert_close(teacher.features(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
