"""Scaled layers: what a host froze stays frozen, and a write into a weight is never lost."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import (
    BilevelStrategy,
    UnsupportedModelError,
    convert_to_aanet,
    freeze_base,
    levels,
    thaw_base,
    to_plain,
)
from aanets_plugin.scaling import scaled_layers
from tests.core.hosts_setup import BLOCKS, STEMS, changed, images, learn, snapshot, vary
from tests.core.test_hardened_conversion import assert_unchanged, everything
from tests.networks import InPlaceNet, ReturntNet, shake

# What the host froze


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("blocks", BLOCKS, ids="+".join)
def test_what_a_host_froze_stays_frozen_in_both_states(blocks, stem):
    net, x = shake(ReturntNet()), images()
    net.requires_grad_(False)
    net.classifier.requires_grad_(True)
    net.layer2[0].bn_b.requires_grad_(True)
    bilevel = BilevelStrategy(convert_to_aanet(net, blocks=blocks, stem=stem))
    for _ in range(2):
        with bilevel.phase():
            learning = {name for name, p in net.named_parameters() if p.requires_grad}
            before = snapshot(net)
            learn(net.train(), x, weight_decay=0.1)
            moved = {name for name in changed(net, before) if "running" not in name}
            moved = {name for name in moved if "num_batches" not in name}
            assert moved == learning
            allowed = ("classifier", "layer2.branches.0.0.bn_b", "layer2.branches.1.0.bn_b")
            assert all(name.startswith(allowed) for name in learning)
            frozen = [b for b in blocks if b == "frozen"] if levels(net)[0].base_frozen else []
            branches = len(levels(net)[0].branches) - len(frozen)
            assert len(learning) == 2 + 2 * branches
    assert {n for n, p in to_plain(net).named_parameters() if p.requires_grad} == {
        "classifier.weight",
        "classifier.bias",
        "layer2.0.bn_b.weight",
        "layer2.0.bn_b.bias",
    }


def test_what_is_frozen_in_a_later_phase_stays_frozen_in_the_base_phase():
    net = convert_to_aanet(ReturntNet(), blocks=("scaling", "scaling"))
    net.layer1.plastic.requires_grad_(False)
    thaw_base(net)
    assert not any(p.requires_grad for n, p in net.layer1.named_parameters() if "conv" in n)
    assert all(p.requires_grad for p in net.layer2.parameters())


# Writing


def fresh():
    net = vary(convert_to_aanet(InPlaceNet()))
    return net, net.layer1.stable[1].conv_b


WRITES = {
    "init": lambda conv: nn.init.kaiming_normal_(conv.weight),
    "init by name": lambda conv: nn.init.zeros_(tensor=conv.weight),
    "data": lambda conv: conv.weight.data.normal_(),
    "detach": lambda conv: conv.weight.detach().mul_(2),
    "set data": lambda conv: setattr(conv.weight, "data", torch.zeros(1)),
    "view": lambda conv: conv.weight.view(-1)[:3].fill_(0),
    "item": lambda conv: conv.weight.__setitem__(0, 0),
    "operator": lambda conv: conv.weight.__imul__(2),
    "out": lambda conv: torch.mul(torch.ones(4, 4, 3, 3), 2, out=conv.weight),
    "reset": lambda conv: conv.reset_parameters(),
    "requires_grad": lambda conv: conv.weight.requires_grad_(False),
    "parameter": lambda conv: setattr(conv, "weight", nn.Parameter(torch.zeros(4, 4, 3, 3))),
    "phi": lambda conv: conv.phi.fill_(2),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_write_into_the_weight_of_a_scaled_layer_is_refused(way):
    net, conv = fresh()
    before = everything(net)
    with torch.no_grad(), pytest.raises(UnsupportedModelError, match=r"W·φ.*thaw_base"):
        WRITES[way](conv)
    assert_unchanged(net, before)


@pytest.mark.parametrize("way", ["init", "data", "view", "operator", "reset", "parameter"])
def test_a_write_into_a_weight_in_the_base_phase_is_made(way):
    net, _ = fresh()
    thaw_base(net)
    conv = net.layer1[1].conv_b
    before = conv.weight.detach().clone()
    with torch.no_grad():
        WRITES[way](conv)
    assert not torch.equal(conv.weight, before)


def test_a_tensor_assigned_to_the_weight_reaches_the_frozen_kernel():
    _, conv = fresh()
    conv.weight = torch.ones(4, 4, 3, 3)
    assert torch.equal(conv.weight, torch.ones(4, 4, 3, 3) * (1 + conv.delta))


def test_the_weight_of_a_scaled_layer_can_be_read_with_gradients():
    _, conv = fresh()
    x = torch.randn(2, 4, 8, 8)
    expected = conv(x)
    output = F.conv2d(x, conv.weight, conv.bias, padding=1)
    assert torch.equal(output, expected)
    assert type(output) is type(expected) is torch.Tensor
    loss = conv.weight.square().sum() + (2 * conv.weight[0]).norm()
    (by_read,) = torch.autograd.grad(loss, conv.delta)
    kernel = dict(conv.named_buffers())["weight"]
    weight = kernel * (1 + conv.delta)
    (by_hand,) = torch.autograd.grad(weight.square().sum() + (2 * weight[0]).norm(), conv.delta)
    torch.testing.assert_close(by_read, by_hand)
    copied = conv.weight.detach().clone()
    copied.zero_()  # a copy may be written into
    assert conv.weight.norm() > 0


# Changes of state


def test_a_change_of_state_that_fails_leaves_the_model_as_it_was():
    net = vary(convert_to_aanet(InPlaceNet()))

    class Once(nn.Conv2d):
        def __deepcopy__(self, memo):
            raise RuntimeError("no more copies")

    net.layer2.plastic[1].conv_b.__class__ = Once
    before = everything(net)
    with pytest.raises(UnsupportedModelError, match=r"no more copies.*not changed"):
        freeze_base(net)
    assert_unchanged(net, before)
    assert all(layer.delta.abs().sum() > 0 for layer in scaled_layers(net))


@pytest.mark.parametrize("thawed", [False, True])
def test_a_checkpoint_is_assigned_to_a_model_made_on_meta(thawed):
    source, x = vary(convert_to_aanet(InPlaceNet())).eval(), images()
    with torch.device("meta"):
        net = convert_to_aanet(InPlaceNet()).eval()
    if thawed:
        thaw_base(net)
    net.load_state_dict(copy.deepcopy(source.state_dict()), assign=True)
    assert torch.equal(net(x), source(x))
    learn(net, x)
    assert not torch.equal(net(x), source(x))
