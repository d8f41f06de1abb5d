"""with_aanets on learners with PyCIL's joints."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import AlreadyConvertedError, ConfigurationError, UnsupportedModelError, levels
from aanets_plugin.adapters.pycil import with_aanets
from aanets_plugin.scaling import scaled_layers
from tests.adapters.hosts_setup import EPOCHS, NEW, Watched, images
from tests.adapters.pycil_setup import (
    SSRE,
    BiC,
    DataManager,
    PODNet,
    PyCILLearner,
    SimpleCIL,
    run_pycil,
)

# The memories of the stand-ins have 3 or 4 samples of a class.
pytestmark = pytest.mark.filterwarnings("ignore:.*have fewer than 5 samples")


def seeded(kind=PyCILLearner, **options):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    return kind(**options)


def logits(learner):
    with torch.no_grad():
        return learner._network.eval()(torch.as_tensor(images(0)[0]))["logits"]


def test_the_same_learner_comes_back_with_its_strategy():
    learner = PyCILLearner()
    assert with_aanets(learner) is learner
    assert learner.bilevel.model is learner._network
    assert [level.name for level in levels(learner._network)] == ["stage_1", "stage_2", "stage_3"]


@pytest.mark.parametrize("kind", [PyCILLearner, BiC, PODNet, SSRE, SimpleCIL])
def test_the_first_task_is_the_plain_learners_to_the_bit(kind):
    learner = run_pycil(with_aanets(seeded(kind)), 1)
    numbers = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    plain = run_pycil(seeded(kind), 1)
    assert numbers == [random.random(), float(np.random.rand()), float(torch.rand(()))]
    assert torch.equal(logits(plain), logits(learner))


def test_alpha_learns_after_each_main_epoch_of_later_tasks_and_in_no_other_stage():
    learner = with_aanets(seeded(fine_tuning=3))
    watched = Watched(learner)
    run_pycil(learner, 1)
    assert not learner.bilevel.history
    assert all((level.alpha == 0.5).all() for level in levels(learner._network))
    for task in (1, 2):
        before = [level.alpha.clone() for level in levels(learner._network)]
        learner.incremental_train(DataManager())
        learner.after_task()
        for old, level in zip(before, levels(learner._network), strict=True):
            assert not torch.equal(old, level.alpha)
        assert [r.epoch for r in learner.bilevel.history if r.phase == task][::3] == [0, 1]
    watched.assert_balanced([EPOCHS, EPOCHS])


@pytest.mark.parametrize("kind", [BiC, PODNet, SSRE])
def test_every_form_of_the_training_has_its_epochs_counted(kind):
    learner = with_aanets(seeded(kind))
    watched = Watched(learner)
    run_pycil(learner)
    watched.assert_balanced([EPOCHS, EPOCHS])
    assert all(level.alpha.tolist() != [0.5, 0.5] for level in levels(learner._network))


@pytest.mark.parametrize("kind", [PyCILLearner, BiC, SSRE])
def test_data_parallel_for_the_time_of_a_task_changes_nothing(kind):
    one, two = (run_pycil(with_aanets(seeded(kind, devices=n)), 2) for n in (1, 2))
    assert two.bilevel.model is two._network
    assert two.bilevel.history
    assert [r.weights for r in two.bilevel.history] == [r.weights for r in one.bilevel.history]
    assert torch.equal(logits(one), logits(two))


def test_a_learner_without_memory_has_samples_kept_for_alpha():
    learner = with_aanets(seeded(memory=0))
    watched = Watched(learner)
    run_pycil(learner)
    watched.assert_balanced([EPOCHS, EPOCHS])


def test_a_class_with_few_samples_gives_them_more_than_once():
    learner = with_aanets(seeded(memory=1))
    watched = Watched(learner)
    with pytest.warns(UserWarning, match="have fewer than 5 samples"):
        run_pycil(learner)
    watched.assert_balanced([EPOCHS, EPOCHS])
    assert set(watched.counts[-1].values()) == {5}


def test_per_class_is_the_number_of_samples():
    learner = with_aanets(seeded(), per_class=2)
    watched = Watched(learner)
    run_pycil(learner)
    assert all(set(counts.values()) == {2} for counts in watched.counts)


def test_optimizers_have_phi_and_their_weight_decay_does_not_shrink_it():
    learner = run_pycil(with_aanets(seeded(), lr=0), 1)
    learner.incremental_train(DataManager())
    layers = list(scaled_layers(learner._network))
    held = {id(p) for group in learner.optimizers[-1].param_groups for p in group["params"]}
    assert layers
    assert all(id(layer.delta) in held for layer in layers)
    assert len(learner.optimizers[-1].param_groups) == 1
    # 12 steps with decay 0.1 and lr 0.05 on φ would make the mean 0.94, before momentum.
    assert all(abs(float(layer.phi.detach().mean()) - 1) < 0.05 for layer in layers)


def test_both_branches_learn_and_teacher_and_frozen_kernels_stay():
    learner = run_pycil(with_aanets(seeded()), 2)
    teacher = copy.deepcopy(learner._old_network.state_dict())
    level = levels(learner._network)[0]
    kernel = level.stable[0].conv_a._buffers["weight"].clone()
    plastic, phi = (p.detach().clone() for p in (level.plastic[0].conv_a.weight, first_phi(level)))
    learner.incremental_train(DataManager())
    state = learner._old_network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in teacher.items())
    assert torch.equal(kernel, level.stable[0].conv_a._buffers["weight"])
    assert not torch.equal(plastic, level.plastic[0].conv_a.weight)
    assert not torch.equal(phi, first_phi(level))


def first_phi(level):
    return level.stable[0].conv_a.phi


def test_of_the_outputs_for_each_rotation_only_those_of_the_class_count():
    class PASS(PyCILLearner):
        pass

    learner = with_aanets(PASS())
    learner._network.update_fc(8)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 1, 0])
    loss = learner.bilevel.loss_fn(learner._network.eval(), (torch.arange(4), x, y))
    logits = learner._network(x)["logits"]
    assert torch.allclose(loss, F.cross_entropy(logits[:, ::4], y))


def test_a_learner_that_adds_a_backbone_per_task_is_refused_untouched():
    learner = PyCILLearner()
    learner._network.convnets = nn.ModuleList()
    with pytest.raises(UnsupportedModelError, match="more than one backbone"):
        with_aanets(learner)
    assert not levels(learner._network)
    assert not hasattr(learner, "bilevel")


def test_what_is_not_a_learner_is_refused():
    with pytest.raises(UnsupportedModelError, match="not a PyCIL learner"):
        with_aanets(nn.Linear(2, 2))


@pytest.mark.parametrize("named", [True, False])
def test_the_training_loader_is_found_among_named_arguments_or_in_the_learner(named):
    class Named(PyCILLearner):
        def train_task(self, data_manager):
            self._train(**{"train_loader": self.train_loader} if named else {})

        def _train(self, train_loader=None):
            self._run(train_loader or self.train_loader, EPOCHS, self._network.parameters())

    learner = with_aanets(Named(memory=0))
    watched = Watched(learner)
    run_pycil(learner, 2)
    watched.assert_balanced([EPOCHS])


def test_a_second_call_is_refused():
    learner = with_aanets(PyCILLearner())
    with pytest.raises(AlreadyConvertedError):
        with_aanets(learner)


def test_a_bad_option_is_refused_untouched():
    learner = PyCILLearner()
    with pytest.raises(ConfigurationError, match="momentum=2"):
        with_aanets(learner, momentum=2)
    assert not levels(learner._network)


def test_a_learner_with_a_fixed_backbone_is_told_once_and_gives_the_same_outputs():
    learner = with_aanets(seeded(SimpleCIL))
    with pytest.warns(UserWarning, match="did not train the backbone in phase 1") as warned:
        run_pycil(learner)
    assert len(warned) == 1
    assert not learner.bilevel.history
    assert torch.equal(logits(learner), logits(run_pycil(seeded(SimpleCIL))))


def test_a_task_with_steps_of_the_head_alone_is_told():
    learner = run_pycil(with_aanets(PyCILLearner()), 1)
    learner._network.convnet.requires_grad_(False)
    with pytest.warns(UserWarning, match="did not train the backbone in phase 1"):
        learner.incremental_train(DataManager())
    assert not learner.bilevel.history


def test_merged_adapters_leave_the_outputs_and_later_the_frozen_kernels_alone():
    learner = with_aanets(seeded(SSRE))
    compress, differences = learner._network_compression, []

    def compared():
        before = logits(learner)
        compress()
        differences.append(float((before - logits(learner)).abs().max()))

    learner._network_compression = compared
    run_pycil(learner, 1)
    stable = levels(learner._network)[0].stable[0].conv_a
    kernel, phi = stable.conv._buffers["weight"].clone(), stable.conv.phi.detach().clone()
    plastic = levels(learner._network)[0].plastic[0].conv_a.conv.weight.detach().clone()
    assert torch.equal(kernel, plastic)
    run_pycil(learner, 2)
    assert max(differences) < 1e-5  # float32, one convolution instead of two
    assert torch.equal(kernel, stable.conv._buffers["weight"])
    assert not stable.adapter.weight.any()
    assert not torch.equal(phi, stable.conv.phi)
    assert not torch.equal(plastic, levels(learner._network)[0].plastic[0].conv_a.conv.weight)


def test_a_saved_checkpoint_gives_the_same_outputs_in_a_new_learner(tmp_path):
    learner = run_pycil(with_aanets(seeded()), 2)
    learner.save_checkpoint(tmp_path / "wa")
    fresh = with_aanets(PyCILLearner())
    fresh._network.update_fc(2 * NEW)
    state = torch.load(tmp_path / "wa_1.pkl")["model_state_dict"]
    assert not torch.equal(logits(learner), logits(fresh))
    fresh._network.load_state_dict(state)
    assert torch.equal(logits(learner), logits(fresh))


def test_an_error_in_the_training_leaves_no_hook_behind():
    learner = run_pycil(with_aanets(PyCILLearner(memory=0)), 1)

    class Broken(DataManager):
        def get_dataset(self, *args, **kwargs):
            dataset = super().get_dataset(*args, **kwargs)
            dataset.images = dataset.images[:, :1]
            return dataset

    with pytest.raises(RuntimeError):
        learner.incremental_train(Broken())
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.optim.SGD([parameter], 0.1).step()
    assert not learner.bilevel.history
