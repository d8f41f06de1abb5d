"""Networks as the methods take them: without their head, and how many features that leaves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aanets_plugin.baselines import CifarResNet
from aanets_plugin.baselines.network import feature_count, without_head
from aanets_plugin.errors import UnsupportedModelError
from tests.networks import Block

SIZE = (3, 16, 16)


def images(count=2):
    return torch.randn(count, *SIZE)


class Gated(nn.Module):
    """A network that gives features; its last linear layer is a gate inside."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(Block(4, 4))
        self.gate = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer1(self.conv1(x)).mean((2, 3))
        return x * torch.sigmoid(self.gate(x))


def torchvision_net():
    return pytest.importorskip("torchvision").models.resnet18(num_classes=5)


def timm_net(classes):
    return pytest.importorskip("timm").create_model("resnet10t", num_classes=classes)


@pytest.mark.parametrize(
    ("make", "features", "outputs"),
    [
        (torchvision_net, 512, 5),
        (lambda: timm_net(5), 512, 5),
        (lambda: timm_net(0), 512, 512),
        (lambda: CifarResNet(1, 5), 64, 5),
        (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(392, 5)), 392, 5),
        (Gated, 4, 4),
    ],
    ids=["torchvision", "timm", "timm-without", "cifar", "sequential", "gated"],
)
def test_a_network_without_its_head_gives_what_the_head_saw(make, features, outputs):
    net, x, seen = make().eval(), images(2), []
    last = [m for m in net.modules() if getattr(m, "in_features", None) == features]
    expected = net(x)
    if outputs != features:
        last[-1].register_forward_hook(lambda module, args, out: seen.append(args[0]))
        net(x)
        expected = seen[0]
    body = without_head(net, SIZE)
    assert body is net
    assert feature_count(body, SIZE) == features
    assert torch.equal(body(x), expected)
    assert without_head(body, SIZE) is body
    assert torch.equal(body(x), expected)


def test_looking_at_the_features_leaves_the_network_as_it_was():
    net = without_head(CifarResNet(1, 5)).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    feature_count(net, SIZE)
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_what_is_no_backbone_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"the model is a Linear and nothing else"):
        without_head(nn.Linear(4, 2))
    with pytest.raises(UnsupportedModelError, match=r"LSTM returns a tuple"):
        feature_count(nn.LSTM(8, 4), (8, 8))
