"""Channels-last inside the levels of a folded network, and no trace of it outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aanets_plugin import convert_to_aanet, fold, levels
from tests.networks import relative_error, shake


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)) + x)


class ViewingBlock(Block):
    """Flattens its features without a copy, which only contiguous ones allow."""

    def forward(self, x):
        out = self.bn(self.conv(x))
        return torch.relu(out.view(x.shape[0], -1).view_as(x) + x)


class Net(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        for number, block in enumerate(blocks or (Block, Block, Block), 1):
            setattr(self, f"layer{number}", nn.Sequential(block(), block()))

    def forward(self, x):
        return self.layer3(self.layer2(self.layer1(self.pool(self.conv1(x)))))


class LooksBetween(Net):
    """Reads the features of the first level, beside the next one."""

    def forward(self, x):
        x = self.layer1(self.pool(self.conv1(x)))
        return self.layer3(self.layer2(x)) + x.view(x.shape[0], -1).mean()


class LooksAfterThePool(Net):
    def forward(self, x):
        x = self.pool(self.conv1(x))
        return self.layer3(self.layer2(self.layer1(x.view(x.shape[0], 8, 4, 4))))


class Decides(Net):
    """What this does depends on values, so nobody sees its code beforehand."""

    def forward(self, x):
        x = self.layer1(self.pool(self.conv1(x)))
        if x.mean() > -1e6:
            x = x.view(x.shape[0], -1).view_as(x)
        return self.layer3(self.layer2(x))


def seen(net):
    """Outputs of net and folded net, and per part of the latter how its output lies."""
    torch.manual_seed(0)
    net = shake(convert_to_aanet(net, stages=["layer1", "layer2", "layer3"])).eval()
    x = torch.randn(2, 3, 8, 8)
    folded, formats = fold(net), {}

    def note(name):
        def hook(module, args, output):
            channels_last = output.is_contiguous(memory_format=torch.channels_last)
            formats[name] = "last" if channels_last else "first"

        return hook

    folded.pool.register_forward_hook(note("pool"))
    for level in levels(folded):
        level.register_forward_hook(note(level.name))
        level.plastic[0].register_forward_hook(note(f"in {level.name}"))
    with torch.no_grad():
        return net(x), folded(x), formats


def test_tensors_stay_channels_last_from_level_to_level_and_leave_contiguous():
    expected, output, formats = seen(Net())
    assert relative_error(output, expected) < 1e-5
    assert formats == {
        "pool": "last",
        "in layer1": "last",
        "layer1": "last",
        "in layer2": "last",
        "layer2": "last",
        "in layer3": "last",
        "layer3": "first",
    }


@pytest.mark.parametrize(
    ("kind", "contiguous"),
    [
        (LooksBetween, {"layer1", "layer3"}),
        (LooksAfterThePool, {"pool", "layer3"}),
        (Decides, {"pool", "layer1", "layer2", "layer3"}),
    ],
)
def test_what_other_code_reads_is_contiguous(kind, contiguous):
    expected, output, formats = seen(kind())
    assert relative_error(output, expected) < 1e-5
    assert {name for name, lies in formats.items() if lies == "first"} == contiguous


def test_a_level_whose_code_needs_contiguous_tensors_gets_them():
    expected, output, formats = seen(Net(Block, ViewingBlock, Block))
    assert relative_error(output, expected) < 1e-5
    inside = {name: lies for name, lies in formats.items() if name.startswith("in ")}
    assert inside == {"in layer1": "last", "in layer2": "first", "in layer3": "last"}
    assert formats["layer1"] == "first"


def test_such_code_fails_on_channels_last_tensors():
    """The control: what the tests above keep from happening."""
    x = torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="view"):
        ViewingBlock().to(memory_format=torch.channels_last)(x)


def test_nothing_is_laid_out_where_no_level_can_be():
    _, _, formats = seen(Net(ViewingBlock, ViewingBlock, ViewingBlock))
    assert set(formats.values()) == {"first"}


def test_a_plain_network_keeps_its_layout():
    folded = fold(Net().eval())
    assert not any(module._forward_pre_hooks for module in folded.modules())
