"""AANetCallback in Lightning's own trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from aanets_plugin import ConfigurationError, balanced_subset, levels
from aanets_plugin.baselines import CifarResNet
from aanets_plugin.scaling import scaled_layers
from tests.adapters.hosts_setup import NEW, TASKS, images

L = pytest.importorskip("lightning", reason="Lightning is not installed")

from aanets_plugin.adapters.lightning import AANetCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning")


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = CifarResNet(1, TASKS * NEW)
        self.optimizer = None

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        return F.cross_entropy(self(batch[0]), batch[1])

    def predict_step(self, batch, _):
        return self(batch[0])

    def configure_optimizers(self):
        self.optimizer = torch.optim.SGD(self.parameters(), 0.05, 0.9, weight_decay=0.1)
        return self.optimizer


def data(*tasks):
    arrays = [images(task) for task in tasks]
    x, y = (np.concatenate(column) for column in zip(*arrays, strict=True))
    return TensorDataset(torch.as_tensor(x), torch.as_tensor(y))


def loader(task):
    return DataLoader(data(task), 8)


def balanced(task):
    generator = torch.Generator().manual_seed(task)
    subset = balanced_subset(data(*range(task + 1)), generator=generator)
    return lambda: DataLoader(subset, 8)


def trainer(folder, callback=None, epochs=2, **options):
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[callback] if callback else [],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def fit(folder, module, callback, task, epochs=2, **options):
    callback.balanced = balanced(task)
    run = trainer(folder, callback, epochs)
    run.fit(module, loader(task), **options)
    return run


def test_every_fit_is_a_phase_and_alpha_learns_after_each_epoch_but_in_the_first(tmp_path):
    module, callback = Module(), AANetCallback(balanced=(), network="net")
    fit(tmp_path, module, callback, 0)
    assert not callback.bilevel.history
    alphas = [level.alpha.clone() for level in levels(module.net)]
    assert all((alpha == 0.5).all() for alpha in alphas)
    for task in (1, 2):
        run = fit(tmp_path, module, callback, task, epochs=2 + task)
        epochs = [r.epoch for r in callback.bilevel.history if r.phase == task]
        assert epochs[::3] == list(range(2 + task))
        assert float(run.callback_metrics["alpha/layer1"]) == float(levels(module)[0].alpha[0])
    assert all((level.alpha != 0.5).all() for level in levels(module.net))


def test_the_first_fit_is_that_of_the_plain_module_to_the_bit(tmp_path):
    plain, module = Module(), Module()
    trainer(tmp_path).fit(plain, loader(0))
    number = torch.rand(())
    Module()  # seeds again
    fit(tmp_path, module, AANetCallback(balanced=()), 0)
    assert torch.rand(()) == number
    x = data(0).tensors[0]
    assert torch.equal(plain.eval()(x), module.eval()(x))


def test_the_optimizer_has_phi_and_its_weight_decay_does_not_shrink_it(tmp_path):
    module, callback = Module(), AANetCallback(balanced=(), lr=0)
    fit(tmp_path, module, callback, 0)
    fit(tmp_path, module, callback, 1, epochs=4)
    held = {id(p) for group in module.optimizer.param_groups for p in group["params"]}
    layers = list(scaled_layers(module))
    assert layers
    assert all(id(layer.delta) in held for layer in layers)
    assert all(abs(float(layer.phi.detach().mean()) - 1) < 0.02 for layer in layers)


class SaveAfter(L.Callback):
    """Saves a checkpoint at the end of the second epoch."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("task", [0, 1])
def test_a_resumed_fit_ends_with_the_same_numbers(tmp_path, task):
    def until(task):
        module, callback = Module(), AANetCallback(balanced=())
        for earlier in range(task):
            fit(tmp_path, module, callback, earlier)
        return module, callback

    whole, callback = until(task)
    fit(tmp_path, whole, callback, task, epochs=4)

    half, stopped = until(task)
    stopped.balanced = balanced(task)
    run = trainer(tmp_path, stopped, 2)
    run.callbacks.append(SaveAfter(tmp_path / "half.ckpt"))
    run.fit(half, loader(task))

    resumed, again = Module(), AANetCallback(balanced=())
    fit(tmp_path, resumed, again, task, epochs=4, ckpt_path=tmp_path / "half.ckpt")
    state = whole.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in resumed.state_dict().items())
    assert again.bilevel.history == callback.bilevel.history
    assert again.bilevel.phase_index == task


def test_a_checkpoint_between_two_fits_goes_on_with_the_next_phase_or_is_tested(tmp_path):
    module, callback = Module(), AANetCallback(balanced=())
    fit(tmp_path, module, callback, 0)
    run = fit(tmp_path, module, callback, 1)
    run.save_checkpoint(tmp_path / "one.ckpt")
    x = data(1).tensors[0]

    tested, other = Module(), AANetCallback(balanced=())
    outputs = trainer(tmp_path, other).predict(tested, loader(1), ckpt_path=tmp_path / "one.ckpt")
    assert torch.allclose(torch.cat(outputs), module.eval()(x), atol=1e-6)
    assert other.bilevel.history == callback.bilevel.history
    assert not other.bilevel.in_phase

    resumed, again = Module(), AANetCallback(balanced=())
    fit(tmp_path, resumed, again, 2, epochs=4, ckpt_path=tmp_path / "one.ckpt")
    assert again.bilevel.history[:6] == callback.bilevel.history
    assert {record.phase for record in again.bilevel.history[6:]} == {2}


def test_several_fits_in_a_block_are_one_phase(tmp_path):
    module, callback = Module(), AANetCallback(balanced=())
    with callback.phase():
        fit(tmp_path, module, callback, 0)
        fit(tmp_path, module, callback, 0)
    assert callback.bilevel.phase_index == 0
    assert levels(module)[0].base_frozen
    with callback.phase():
        fit(tmp_path, module, callback, 1)
        fit(tmp_path, module, callback, 1)
    assert {r.epoch for r in callback.bilevel.history if r.phase == 1} == {0, 1, 2, 3}


def test_a_second_module_is_refused(tmp_path):
    callback = AANetCallback(balanced=())
    fit(tmp_path, Module(), callback, 0)
    with pytest.raises(ConfigurationError, match="another Module than before"):
        fit(tmp_path, Module(), callback, 1)


def test_a_name_that_is_no_module_is_refused(tmp_path):
    module, callback = Module(), AANetCallback(balanced=(), network="nett")
    with pytest.raises(ConfigurationError, match=r"network='nett'.*'net'"):
        fit(tmp_path, module, callback, 0)
    assert not levels(module)


def test_there_is_no_history_before_the_first_fit():
    with pytest.raises(ConfigurationError, match=r"before trainer\.fit"):
        AANetCallback(balanced=()).bilevel  # noqa: B018


def test_two_processes_with_different_data_have_the_same_alpha_and_parameters(tmp_path):
    script = Path(__file__).with_name("lightning_two_processes.py")
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first.pop("data") != second.pop("data")
    assert first == second
    assert "sync_dist" not in done.stderr  # Lightning's warning about what is logged
    assert len(first["history"]) == 2 * 3
    assert all(weights != [0.5, 0.5] for weights in first["alpha"])
