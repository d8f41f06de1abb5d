"""with_aanets on models with mammoth's joints."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aanets_plugin import ConfigurationError, UnsupportedModelError, levels
from aanets_plugin.adapters.mammoth import _take_options, with_aanets
from aanets_plugin.scaling import scaled_layers
from tests.adapters.hosts_setup import EPOCHS, MammothModel, Watched, run_mammoth, run_mammoth_task

# The memories of the stand-ins have 3 or 4 samples of a class.
pytestmark = pytest.mark.filterwarnings("ignore:.*have fewer than 5 samples")


def seeded(kind="er"):
    np.random.seed(1)
    torch.manual_seed(1)
    return MammothModel(kind)


def alphas(model):
    return torch.stack([level.alpha for level in levels(model.net)])


@pytest.mark.parametrize("kind", ["er", "sgd", "ewc", "si"])
def test_alpha_learns_after_each_epoch_of_later_tasks_on_balanced_data(kind):
    model = seeded(kind)
    assert with_aanets(model) is model
    watched = Watched(model)
    run_mammoth(model, 1)
    assert (alphas(model) == 0.5).all()
    assert not model.bilevel.history
    before = alphas(model)
    run_mammoth_task(model, 1)
    middle = alphas(model)
    run_mammoth_task(model, 2)
    assert (before != middle).all()
    assert (middle != alphas(model)).all()
    watched.assert_balanced([EPOCHS, EPOCHS])
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
    run_mammoth(model)
    watched.assert_balanced([EPOCHS, EPOCHS])


@pytest.mark.parametrize("kind", ["er", "si"])
def test_the_first_task_is_the_plain_models_to_the_bit(kind):
    plain, model = run_mammoth(seeded(kind), 1), run_mammoth(with_aanets(seeded(kind)), 1)
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(plain.net.eval()(x), model.net.eval()(x))


def test_outputs_of_classes_to_come_are_no_part_of_the_loss():
    model = run_mammoth(with_aanets(seeded()), 2)
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 4
    loss = model.bilevel.loss_fn(model.net.eval(), (x, y))
    logits = model.net(x)
    assert torch.allclose(loss, F.cross_entropy(logits[:, :4], y))
    assert not torch.allclose(loss, F.cross_entropy(logits, y))


def test_importances_are_of_the_parameters_that_there_are():
    model = run_mammoth(with_aanets(seeded("ewc")), 1)
    assert model.fish.shape == model.net.get_params().shape
    phi = {id(layer.delta) for layer in scaled_layers(model.net)}
    sizes = [p.numel() for p in model.net.parameters()]
    parts = dict(zip(map(id, model.net.parameters()), torch.split(model.fish, sizes), strict=True))
    assert phi <= set(parts)
    assert all((parts[each] < 1e3).all() for each in phi)


def test_vectors_follow_their_parameters_when_new_ones_appear():
    model = with_aanets(seeded("si"))
    plastic = levels(model.net)[0].plastic[0].conv_a.weight
    run_mammoth(model, 1)
    sizes = [p.numel() for p in model.net.parameters()]
    parts = zip(model.net.parameters(), torch.split(model.big_omega, sizes), strict=True)
    omega = {id(parameter): part for parameter, part in parts}
    assert (omega[id(plastic)] != 0).any()
    assert all((omega[id(layer.delta)] == 0).all() for layer in scaled_layers(model.net))


def test_a_checkpoint_goes_on_where_it_was_saved():
    model = run_mammoth(with_aanets(seeded()), 2)
    state = copy.deepcopy(model.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    other = with_aanets(seeded())
    other.load_state_dict(state)
    assert torch.equal(alphas(other), alphas(model))
    assert other.bilevel.history == model.bilevel.history
    assert other.bilevel.step.squares == model.bilevel.step.squares
    assert not other.bilevel.in_base_phase


def test_after_a_checkpoint_the_buffer_still_gives_the_old_classes():
    model = run_mammoth(with_aanets(seeded()), 2)
    other = with_aanets(seeded())
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    other.buffer, other._current_task = model.buffer, 2
    watched = Watched(other)
    run_mammoth_task(other, 2)
    assert all(set(counts) == set(range(6)) for counts in watched.counts)
    assert len(watched.counts) == EPOCHS


def test_after_a_checkpoint_a_model_without_a_buffer_has_the_same_samples_for_alpha():
    """mammoth's --start_from goes through the earlier tasks without training, then loads."""
    model = run_mammoth(with_aanets(seeded("sgd")), 2)
    other = with_aanets(seeded("sgd"))
    for task in range(2):
        run_mammoth_task(other, task, epochs=0)
    other.load_state_dict(copy.deepcopy(model.state_dict()))

    def samples_in_task_2(model):
        batches, loss_fn = [], model.bilevel.loss_fn
        model.bilevel.loss_fn = lambda net, batch: batches.append(batch) or loss_fn(net, batch)
        run_mammoth_task(model, 2)
        x, y = map(torch.cat, zip(*batches, strict=True))
        assert set(y.tolist()) == set(range(6))
        return x - x.mean((1, 2, 3), keepdim=True), y  # the augmentation adds a constant

    for one, two in zip(samples_in_task_2(model), samples_in_task_2(other), strict=True):
        torch.testing.assert_close(one, two)


def test_tasks_without_training_leave_a_loaded_model_as_it_is():
    model = run_mammoth(with_aanets(seeded()), 2)
    other = with_aanets(seeded())
    other.load_state_dict(model.state_dict())
    run_mammoth_task(other, 0, epochs=0)  # without a warning: nothing was trained at all
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(model.net.eval()(x), other.net.eval()(x))


def test_a_model_that_starts_anew_is_refused_untouched():
    model = MammothModel()
    model.NAME = "gdumb"
    with pytest.raises(UnsupportedModelError, match="trains a new network"):
        with_aanets(model)
    assert not levels(model.net)


def test_options_of_the_command_line():
    arguments = [
        "x",
        "--model",
        "er",
        "--aanets",
        "lr=0.1",
        "--seed",
        "1",
        "--aanets",
        "stem=paired",
    ]
    assert _take_options(arguments) == {"lr": 0.1, "stem": "paired"}
    assert arguments == ["x", "--model", "er", "--seed", "1"]
    with pytest.raises(ConfigurationError, match="must be name=value"):
        _take_options(["x", "--aanets", "lr"])
