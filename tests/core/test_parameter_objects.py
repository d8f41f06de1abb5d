"""Parameters that somebody has from before the conversion are those of the base phase."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import (
    BilevelStrategy,
    UnsupportedModelError,
    convert_to_aanet,
    freeze_base,
    thaw_base,
)
from aanets_plugin.baselines import CifarResNet
from aanets_plugin.scaling import freeze, release, scale

X, Y = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4
CONVERSIONS = [
    {},
    {"stem": "paired"},
    {"stem": "plastic"},
    {"blocks": ("scaling", "frozen")},
    {"blocks": ("frozen",)},
]


def network():
    torch.manual_seed(0)
    return CifarResNet(1, 4)


def train(model, optimizer):
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("options", CONVERSIONS, ids=str)
def test_an_optimizer_from_before_the_conversion_trains_all_of_phase_0(options):
    plain, model = network(), network()
    before, optimizer = list(model.parameters()), sgd(model)
    bilevel = BilevelStrategy(convert_to_aanet(model, **options))
    assert {id(p) for p in model.parameters()} == {id(p) for p in before}
    assert all(p.requires_grad for p in before)
    with bilevel.phase():
        start = before[0].detach().clone()
        train(plain, sgd(plain))
        train(model, optimizer)
        assert not torch.equal(before[0], start)
        assert torch.equal(model.eval()(X), plain.eval()(X))
    with bilevel.phase():  # the control: phase 1 has other parameters
        assert {id(p) for p in model.parameters()} != {id(p) for p in before}


@pytest.mark.filterwarnings("ignore:φ did not move")
def test_an_optimizer_of_phase_0_does_not_change_the_frozen_base():
    model = network()
    optimizer = sgd(model)
    bilevel = BilevelStrategy(convert_to_aanet(model))
    with bilevel.phase():
        train(model, optimizer)
    weight, base = model.fc.weight.detach().clone(), dict(model.conv1.named_buffers())["weight"]
    frozen = base.clone()
    with bilevel.phase():
        model.zero_grad()  # leaves the last gradients of conv1, which the optimizer still has
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
    assert torch.equal(base, frozen)
    assert not torch.equal(model.fc.weight, weight)  # the control: it trains what it has


def test_the_value_is_that_of_the_model_not_the_one_that_the_parameter_had():
    model = network()
    weight = model.conv1.weight
    convert_to_aanet(model).double()
    with torch.no_grad():
        model.conv1.delta.fill_(1.0)
    weight.grad = torch.ones_like(weight)
    expected = 2 * weight.detach().double()
    thaw_base(model)
    assert model.conv1.weight is weight
    assert torch.equal(weight, expected)
    assert weight.grad is None


def test_what_did_not_learn_does_not_learn():
    model = network()
    frozen = model.conv1.weight.requires_grad_(False)
    thaw_base(convert_to_aanet(model))
    assert model.conv1.weight is frozen
    assert not frozen.requires_grad


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "file"]
)
def test_a_copy_does_not_take_the_parameters_of_the_original(copied):
    model = network()
    before = set(model.parameters())
    other = copied(convert_to_aanet(model))
    for each in (other, model):
        thaw_base(each)
    assert not set(other.parameters()) & before
    assert set(model.parameters()) == before


def test_a_parameter_that_nobody_has_is_not_kept_alive():
    model = network()
    weight = weakref.ref(model.conv1.weight)
    convert_to_aanet(model)
    gc.collect()
    assert weight() is None
    thaw_base(model)
    assert model.conv1.weight.requires_grad


def test_a_change_of_state_that_fails_leaves_the_parameters_where_they_are():
    model = network()
    weight = model.conv1.weight
    convert_to_aanet(model)
    with torch.no_grad():
        model.conv1.delta.fill_(1.0)
    model.layer3.plastic.lock = threading.Lock()  # cannot be copied, so that freezing fails
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match="cannot be frozen"):
        freeze_base(model)
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    thaw_base(model)
    assert model.conv1.weight is weight
    assert torch.equal(weight, 2 * state["conv1.weight"])


@pytest.mark.parametrize("phi", [1.0, 2.0])
def test_layers_that_shared_a_parameter_share_it_again_if_they_are_equal(phi):
    pair = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    weight = pair[1].weight = pair[0].weight
    scale(pair)
    with torch.no_grad():
        pair[1].delta.fill_(phi - 1)
    expected = [layer.weight.clone() for layer in pair]
    release(pair, training=True)
    assert pair[0].weight is weight
    assert (pair[1].weight is weight) == (phi == 1)
    assert all(torch.equal(a.weight, b) for a, b in zip(pair, expected, strict=True))


def test_integers_come_back():
    """Weights that cannot learn, such as those of a quantized layer."""
    layer = nn.Module()
    layer.register_parameter("q", nn.Parameter(torch.arange(3), requires_grad=False))
    freeze(layer)
    release(layer, training=True)
    assert layer.q.tolist() == [0, 1, 2]
