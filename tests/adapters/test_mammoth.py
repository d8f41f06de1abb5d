"""with_aanets on models with mammoth's joints."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aanets_plugin import ConfigurationError, UnsupportedModelError, levels
from aanets_plugin.adapters.mammoth import REFUSED, _split_options, with_aanets
from aanets_plugin.scaling import scaled_layers
from tests.adapters.hosts_setup import EPOCHS, TASKS, Watched
from tests.adapters.mammoth_setup import MODELS, ContinualDataset, checkpoint, get_model, train

# The memories of the stand-ins have 3 or 4 samples of a class.
pytestmark = pytest.mark.filterwarnings("ignore:.*have fewer than 5 samples")


def seeded(name="er"):
    np.random.seed(1)
    torch.manual_seed(1)
    return get_model(name)


def alphas(model):
    return torch.stack([level.alpha for level in levels(model.net)])


def states(model, **options):
    """Train and return the state of the network when each task ends."""
    after, end_task = [], model.meta_end_task

    def ended(dataset):
        end_task(dataset)
        after.append(copy.deepcopy(model.net.state_dict()))

    model.meta_end_task = ended
    train(model, **options)
    return after


@pytest.mark.parametrize("name", MODELS)
def test_alpha_learns_after_each_epoch_of_later_tasks_on_balanced_data(name):
    model = seeded(name)
    assert with_aanets(model) is model
    watched = Watched(model)
    after = states(model)
    alpha = [torch.stack([v for k, v in state.items() if "alpha" in k]) for state in after]
    assert (alpha[0] == 0.5).all()
    assert (alpha[0] != alpha[1]).all()
    assert (alpha[1] != alpha[2]).all()
    assert {record.phase for record in model.bilevel.history} == {1, 2}
    watched.assert_balanced([EPOCHS, EPOCHS])
    frozen = [
        [v for k, v in state.items() if "branches.1" in k and k.endswith("conv1.weight")]
        for state in after
    ]
    assert all(torch.equal(*pair) for pair in zip(frozen[0], frozen[2], strict=True))
    assert all(0.5 < float(layer.phi.detach().mean()) < 2 for layer in scaled_layers(model.net))


@pytest.mark.parametrize("lacks", ["labels", "__len__"])
def test_a_buffer_that_cannot_be_read_by_class_is_no_memory_for_alpha(lacks):
    model = seeded()
    whole = model.buffer

    class Partial:
        add_data = whole.add_data
        examples = property(lambda self: whole.examples)

    if lacks == "labels":
        Partial.__len__ = lambda self: len(whole)
    else:
        Partial.labels = property(lambda self: whole.labels)
    model.buffer = Partial()
    watched = Watched(with_aanets(model))
    train(model)
    watched.assert_balanced([EPOCHS, EPOCHS])


def test_samples_without_a_label_are_not_for_alpha():
    watched = Watched(with_aanets(seeded()))
    train(watched.learner, ContinualDataset(unlabelled=3))
    watched.assert_balanced([EPOCHS, EPOCHS])


@pytest.mark.parametrize("name", ["er", "si", "er_ace_aer_abs"])
def test_the_first_task_is_the_plain_models_to_the_bit(name):
    plain = train(seeded(name), tasks=1)
    numbers = torch.rand(1), np.random.rand()
    model = train(with_aanets(seeded(name)), tasks=1)
    assert (torch.rand(1), np.random.rand()) == numbers
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(plain.net.eval()(x), model.net.eval()(x))


def test_outputs_of_classes_to_come_are_no_part_of_the_loss():
    model = train(with_aanets(seeded()), tasks=2)
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 4
    loss = model.bilevel.loss_fn(model.net.eval(), (x, y))
    logits = model.net(x)
    assert torch.allclose(loss, F.cross_entropy(logits[:, :4], y))
    assert not torch.allclose(loss, F.cross_entropy(logits, y))


def test_importances_are_of_the_parameters_that_there_are():
    model = train(with_aanets(seeded("ewc_on")), tasks=1)
    assert model.fish.shape == model.net.get_params().shape
    delta = {id(layer.delta) for layer in scaled_layers(model.net)}
    sizes = [p.numel() for p in model.net.parameters()]
    parts = dict(zip(map(id, model.net.parameters()), torch.split(model.fish, sizes), strict=True))
    assert delta <= set(parts)
    assert all((parts[each] < 1e3).all() for each in delta)


def test_vectors_follow_their_parameters_when_new_ones_appear():
    model = with_aanets(seeded("si"))
    plastic = levels(model.net)[0].plastic[0].conv1.weight
    train(model, tasks=1)
    sizes = [p.numel() for p in model.net.parameters()]
    parts = zip(model.net.parameters(), torch.split(model.big_omega, sizes), strict=True)
    omega = {id(parameter): part for parameter, part in parts}
    assert (omega[id(plastic)] != 0).any()
    assert all((omega[id(layer.delta)] == 0).all() for layer in scaled_layers(model.net))


def test_a_second_network_with_the_same_weights_gives_the_same_outputs():
    model = train(with_aanets(seeded("hal")))
    assert model.spare_gap < 1e-5
    optimized = {id(p) for group in model.spare_opt.param_groups for p in group["params"]}
    assert optimized == set(map(id, model.spare_model.parameters()))


def test_a_copy_of_the_network_at_the_end_of_an_epoch_has_its_alpha():
    model = train(with_aanets(seeded("er_ace_aer_abs")), tasks=2)
    assert torch.equal(model.past_model_ckpt["layer1.alpha"], model.net.layer1.alpha)


def test_what_a_block_keeps_of_its_output_is_of_both_branches():
    model = train(with_aanets(seeded("derpp_lider")), tasks=2)
    net, level = model.net.eval(), model.net.layer1
    x = torch.randn(4, 3, 8, 8)
    stem = F.relu(net.bn1(net.conv1(x)))
    kept = []
    for branch in level.branches:
        branch(stem)
        kept.append(branch[-1].prerelu)
    _, features = net(x, returnt="full")
    torch.testing.assert_close(features[1], level.alpha[0] * kept[0] + level.alpha[1] * kept[1])
    assert not torch.allclose(*kept)


@pytest.mark.parametrize("returnt", ["out", "features", "both", "full"])
def test_the_forms_of_the_output_are_as_before(returnt):
    model = train(seeded(), tasks=1)
    x = torch.randn(4, 3, 8, 8)
    model.net.eval()
    before = model.net(x, returnt=returnt)
    after = with_aanets(model, base_phase=False).net(x, returnt=returnt)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)  # sums in another order


@pytest.mark.parametrize("name", ["er", "sgd"])
def test_a_run_from_a_checkpoint_ends_as_the_run_without_a_break(name):
    whole = with_aanets(seeded(name))
    saved, end_task = [], whole.meta_end_task

    def ended(dataset):
        end_task(dataset)
        saved.append((checkpoint(whole), torch.get_rng_state(), np.random.get_state()))

    whole.meta_end_task = ended
    train(whole)

    state, torch_state, numpy_state = saved[1]
    resumed = with_aanets(seeded(name))
    dataset = ContinualDataset()
    get_data_loaders = dataset.get_data_loaders

    def with_the_random_state_of_then():
        if len(dataset.test_loaders) == 2:
            torch.set_rng_state(torch_state)
            np.random.set_state(numpy_state)
        return get_data_loaders()

    dataset.get_data_loaders = with_the_random_state_of_then
    train(resumed, dataset, start_from=2, loadcheck=state)
    assert all(isinstance(value, torch.Tensor) for value in state[0].values())
    assert resumed.bilevel.history == whole.bilevel.history
    assert resumed.bilevel.step.squares == whole.bilevel.step.squares
    assert torch.equal(alphas(resumed), alphas(whole))


def test_vectors_follow_a_checkpoint():
    state = checkpoint(train(with_aanets(seeded("si")), tasks=1))
    model = train(with_aanets(seeded("si")), start_from=1, loadcheck=state, tasks=2)
    assert model.big_omega.shape == model.net.get_params().shape


def test_a_task_that_was_left_in_the_middle_begins_again():
    model = with_aanets(seeded())
    dataset = ContinualDataset()
    train(model, dataset, tasks=1)
    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    other = train(with_aanets(seeded()), start_from=1, loadcheck=checkpoint(model))
    assert {record.phase for record in other.bilevel.history} == {1, 2}


def test_the_first_task_that_is_trained_is_the_base_phase():
    model = train(with_aanets(seeded()), start_from=1)
    assert {record.phase for record in model.bilevel.history} == {1}
    assert len(model.bilevel.history) == EPOCHS * len(levels(model.net))


def test_tasks_without_training_leave_a_loaded_model_as_it_is():
    model = train(with_aanets(seeded()), tasks=2)
    other = with_aanets(seeded())
    train(other, loadcheck=checkpoint(model), epochs=0)
    assert other._current_task == TASKS
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(model.net.eval()(x), other.net.eval()(x))
    assert other.bilevel.history == model.bilevel.history


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_have_aanets_is_refused_untouched(name):
    model = seeded()
    hooks = set(vars(model))
    kind = type(name, (type(model),), {"NAME": name.replace("_", "-")})
    model.__class__ = type("Mine", (kind,), {"NAME": "mine"})
    with pytest.raises(UnsupportedModelError, match=r"^Mine .*\.$"):
        with_aanets(model)
    assert not levels(model.net)
    assert set(vars(model)) == hooks


def test_options_of_the_command_line():
    arguments = ["--model", "er", "--aanets", "lr=0.1", "--seed", "1", "--aanets=stem=paired"]
    options, rest = _split_options(arguments)
    assert options == {"lr": 0.1, "stem": "paired"}
    assert rest == ["--model", "er", "--seed", "1"]
    for wrong in ("lr", "learning_rate=0.1"):
        with pytest.raises(ConfigurationError, match=rf"{wrong}: must be name=value.* lr, "):
            _split_options(["--aanets", wrong])
