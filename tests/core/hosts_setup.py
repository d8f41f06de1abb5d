"""Converted networks whose branches differ, and what a host does with them in tests."""

from __future__ import annotations

import pytest
import torch

from aanets_plugin import convert_to_aanet, levels
from aanets_plugin.baselines import CifarResNet
from tests.networks import relative_error, shake, tensors

DEFAULT = {"blocks": ("all", "scaling"), "stem": "stable"}
KINDS = {
    "all+scaling": DEFAULT,
    "scaling+frozen": {"blocks": ("scaling", "frozen"), "stem": "stable"},
    "paired": {"blocks": ("all", "scaling"), "stem": "paired"},
}
BLOCKS = [("all", "scaling"), ("scaling", "frozen"), ("frozen",)]
STEMS = ["stable", "plastic", "paired"]

every_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def vary(net):
    """Move everything that learns, and α, so that no two branches compute the same."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for level in levels(net):
            if level.alpha is not None:
                level.alpha.copy_(torch.rand(len(level.branches)).softmax(0))
    return net


def converted(make=lambda: CifarResNet(1, 5), **options):
    return vary(shake(convert_to_aanet(shake(make()), **options)))


def images(count=4):
    return torch.randn(count, 3, 32, 32)


def loss_of(output):
    return sum(tensor.float().square().mean() for tensor in tensors(output))


def learn(net, x, steps=1, **options):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net(x)).backward()
        optimizer.step()


def snapshot(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def changed(net, before):
    """Names in the state_dict whose bits are not what they were."""
    after = net.state_dict()
    assert after.keys() == before.keys()
    return {name for name, value in before.items() if not torch.equal(after[name], value)}


def gradients(net):
    assert all(p.grad is not None for p in net.parameters())
    return [p.grad for p in net.parameters()]


def total_error(actual, expected):
    """Relative error of all the gradients together: a single one may be zero but for rounding."""
    actual, expected = (torch.cat([t.flatten() for t in ts]) for ts in (actual, expected))
    return relative_error(actual, expected)
