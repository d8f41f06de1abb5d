"""What timm's own code does to its networks, it can do to a converted one."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn

from aanets_plugin import convert_to_aanet, levels
from tests.core.hosts_setup import (
    DEFAULT,
    KINDS,
    converted,
    gradients,
    images,
    loss_of,
    total_error,
    vary,
)
from tests.networks import relative_error, shake


def timm_net(name, **options):
    timm = pytest.importorskip("timm")
    small = {"layers": (1, 1, 1, 1), "channels": (16, 32, 32, 64)} if "v2" in name else {}
    return timm.create_model(name, num_classes=5, **small, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("test_resnet", DEFAULT),
        ("test_resnet", KINDS["scaling+frozen"]),
        ("test_resnet", KINDS["paired"]),
        ("resnet10t", DEFAULT),
        ("resnetv2_50", DEFAULT),
        ("regnetx_002", DEFAULT),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else "-".join([*value["blocks"], value["stem"]])
    ),
)
def test_gradient_checkpointing_of_timm_works_on_the_branches(name, options):
    net, x = converted(lambda: timm_net(name), **options).train(), images(2)
    plain = copy.deepcopy(net)
    net.set_grad_checkpointing(True)
    if name in ("resnetv2_50", "regnetx_002"):  # there the flag is on the stages
        branches = [branch for level in levels(net) for branch in level.branches]
        assert len(branches) == 8
        assert all(branch.grad_checkpointing for branch in branches)
        assert not any(b.grad_checkpointing for level in levels(plain) for b in level.branches)

    runs, convs, losses = Counter(), [], []
    for model in (net, plain):
        conv = next(m for m in levels(model)[1].stable.modules() if isinstance(m, nn.Conv2d))
        convs.append(conv)
        conv.register_forward_pre_hook(lambda module, args: runs.update({module}))
        torch.manual_seed(1)
        losses.append(loss_of(model(x)))
        losses[-1].backward()
    assert [runs[conv] for conv in convs] == [2, 1]  # once more, in the backward
    # float32: the same operations; threads may add in another order
    assert relative_error(losses[0], losses[1]) < 1e-4
    assert total_error(gradients(net), gradients(plain)) < 1e-4

    if name in ("resnetv2_50", "regnetx_002"):
        net.set_grad_checkpointing(False)
        assert not any(branch.grad_checkpointing for branch in branches)


@pytest.mark.parametrize("name", ["test_resnet", "resnetv2_50", "regnetx_002"])
def test_the_classifier_of_timm_can_be_reset(name):
    net, x = converted(lambda: timm_net(name), **DEFAULT).eval(), images(2)
    features, logits = net.forward_features(x), net(x)
    assert logits.shape == (2, 5)
    assert torch.equal(net.forward_head(features), logits)
    net.reset_classifier(7)
    assert net(x).shape == (2, 7)
    assert torch.equal(net.forward_features(x), features)
    net.reset_classifier(0)
    assert net(x).shape == (2, net.num_features)
    loss_of(net.train()(x)).backward()
    gradients(net)


@pytest.mark.parametrize("name", ["test_resnet", "resnetv2_50", "regnetx_002"])
def test_a_timm_network_of_feature_maps_gives_the_same_list_of_maps(name):
    timm = pytest.importorskip("timm")
    small = {"layers": (1, 1, 1, 1), "channels": (16, 32, 32, 64)} if "v2" in name else {}
    net = shake(timm.create_model(name, features_only=True, **small)).eval()
    x = images(2)
    expected = net(x)
    assert convert_to_aanet(net) is net
    maps = net(x)
    assert isinstance(maps, list)
    assert [m.shape for m in maps] == [m.shape for m in expected]
    # float32, sums of two equal halves
    assert relative_error(maps, expected) < 1e-5
    vary(net)
    assert relative_error(net(x), expected) > 1e-2
