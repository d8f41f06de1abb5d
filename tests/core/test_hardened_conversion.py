"""Which stages are found, and refused conversions that leave the model as it was."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import (
    UnsupportedModelError,
    convert_to_aanet,
    find_stages,
    levels,
    to_plain,
)
from tests.core.hosts_setup import images, vary
from tests.networks import Block, DictNet, relative_error, shake

# Which blocks are residual


class Inherits(Block):
    def forward(self, x):
        return super().forward(x)


class InheritsTwice(Inherits):
    def forward(self, x):
        return F.relu(super().forward(x))


class Counts(nn.Module):
    """Adds numbers, and no tensors."""

    def __init__(self, inputs, filters, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, filters, 3, stride, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        rows, columns = x.shape[2:]
        count = len(x) + rows + columns
        for index in range(2):
            count += index + 1 + x.size(0)
        return self.conv(x)


class Transposed(nn.Sequential):
    def __init__(self, inputs, filters, stride=1):
        super().__init__(nn.ConvTranspose2d(inputs, filters, 3, 1, 1))


class Scales(Block):
    def forward(self, x):
        return self.conv_a(x) * 0.5 + x


class SplitAndAdd(nn.Module):
    def __init__(self, inputs, filters, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, 2 * filters, 3, stride, 1)

    def forward(self, x):
        one, other = self.conv(x).chunk(2, 1)
        return one + other


@pytest.mark.parametrize(
    ("block", "residual"),
    [
        (Inherits, True),
        (InheritsTwice, True),
        (Scales, True),
        (SplitAndAdd, True),
        (Counts, False),
        (Transposed, False),
    ],
)
def test_a_residual_block_is_one_that_adds_tensors(block, residual):
    stage = nn.Sequential(Block(4, 4), Block(4, 4))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), stage, nn.Sequential(block(4, 4)))
    assert find_stages(net) == (["1", "2"] if residual else ["1"])


class TwoParts(nn.Module):
    """A stem with residual blocks, and the stages in one module, as in EfficientViT and FastViT."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), Block(4, 4), Block(4, 4))
        self.stages = nn.Sequential(
            nn.Sequential(Block(4, 4), Block(4, 4)), nn.Sequential(Block(4, 8, 2), Block(8, 8))
        )

    def forward(self, x):
        return self.stages(self.stem(x))


def test_blocks_outside_of_the_stages_are_named_in_a_warning():
    net = TwoParts()
    assert find_stages(net) == ["stages.0", "stages.1"]
    with pytest.warns(
        UserWarning, match=r"'stages\.0', 'stages\.1'\. .*no level: stem\.1, stem\.2"
    ):
        convert_to_aanet(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert_to_aanet(TwoParts(), stages=["stages.0", "stages.1"])


# Every place of a stage


class Places(nn.Module):
    """Stages under several names: used twice, in a Sequential, in a list, a dict and a tuple."""

    def __init__(self, way):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 1, 1)
        self.layer1 = nn.Sequential(Block(4, 4))
        self.layer2 = nn.Sequential(Block(4, 4), Block(4, 4))
        if way == "same":
            self.layer2 = self.layer1
        elif way == "sequential":
            self.row = nn.Sequential(self.layer1, self.layer2)
        elif way == "list":
            self.row = [self.layer1, self.layer2]
        elif way == "tuple":
            self.row = (self.layer1, self.layer2)
        elif way == "dict":
            self.row = {"a": self.layer1, "b": self.layer2}

    def forward(self, x):
        x = self.conv(x)
        row = getattr(self, "row", (self.layer1, self.layer2))
        for stage in row.values() if isinstance(row, dict) else row:
            x = stage(x)
        return x


@pytest.mark.parametrize("way", ["same", "sequential", "list", "tuple", "dict", "usual"])
def test_a_stage_becomes_a_level_in_every_place_where_the_network_has_it(way):
    plain, x = shake(Places(way)).eval(), images()
    expected = plain(x)
    keys = list(plain.state_dict())
    names = ["layer1"] if way == "same" else ["layer1", "layer2"]
    net = convert_to_aanet(plain)
    assert [level.name for level in levels(net)] == names
    assert relative_error(net(x), expected) < 1e-6

    vary(net)
    called = []
    for level in levels(net):
        level.stable.register_forward_hook(lambda *_, name=level.name: called.append(name))
    net(x)
    assert called == (["layer1", "layer1"] if way == "same" else names)
    again = to_plain(net)
    assert list(again.state_dict()) == keys
    again(x)
    assert len(called) == 2


# All or nothing


class Final(nn.Conv2d):
    def __init_subclass__(cls, **options):
        raise TypeError("Final must not be subclassed")


def with_last_conv(conv, **attributes):
    net = DictNet()
    for name, value in attributes.items():
        setattr(conv, name, value)
    net.stage_3[1].conv_b = conv
    return net


def lazy_stem():
    net = DictNet()
    net.conv_1_3x3 = nn.LazyConv2d(4, 3)
    return net


def scripted_stage():
    net = DictNet()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.stage_3 = torch.jit.script(nn.Sequential(nn.Conv2d(8, 8, 1)))
    return net


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)))


def in_inference_mode():
    with torch.inference_mode():
        return DictNet()


def shared_convolution():
    net = DictNet()
    net.stage_3[1].conv_b = net.stage_2[1].conv_b
    return net


class Uncopyable(Block):
    def __deepcopy__(self, memo):
        raise RuntimeError("no copies of me")


def uncopyable():
    net = DictNet()
    net.stage_3 = nn.Sequential(Uncopyable(8, 8, 2), Block(8, 8))
    return net


STAGES = ["stage_1", "stage_2", "stage_3"]
REFUSED = {
    "own phi": (lambda: with_last_conv(nn.Conv2d(8, 8, 3), phi=1), {}, "stage_3.1.conv_b.*'phi'"),
    "final class": (lambda: with_last_conv(Final(8, 8, 3)), {}, "Final must not be subclassed"),
    "lazy stem": (lazy_stem, {"blocks": ("all", "frozen")}, "conv_1_3x3.*lazy"),
    "scripted stage": (scripted_stage, {"stages": STAGES}, r"stage_3.*torch\.jit"),
    "scripted": (scripted, {"stages": ["1"]}, r"torch\.jit"),
    "inference": (in_inference_mode, {}, "inference mode"),
    "complex": (lambda: DictNet().to(torch.complex64), {}, "complex"),
    "shared": (shared_convolution, {}, "stage_2 and stage_3 share weights"),
    "uncopyable": (uncopyable, {"blocks": ("scaling", "frozen")}, "RuntimeError: no copies of me"),
    "no name": (DictNet, {"stages": ["stage_9"]}, "stage_9"),
}


def everything(model):
    """All that a conversion could change, as objects and values."""
    modules = {}
    for name, module in model.named_modules(remove_duplicate=False):
        attributes = {
            key: [(k, id(v)) for k, v in value.items()] if isinstance(value, dict) else repr(value)
            for key, value in vars(module).items()
            if key not in ("_modules", "_c", "_concrete_type", "_python_modules", "_constants_set")
        }
        modules[name] = (id(module), type(module), attributes)
    tensors = {
        name: (id(tensor), tensor.requires_grad, tensor.detach().clone())
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if not nn.parameter.is_lazy(tensor)
    }
    return modules, tensors


def assert_unchanged(model, before):
    modules, tensors = everything(model)
    assert modules == before[0]
    assert tensors.keys() == before[1].keys()
    for name, (identity, flag, value) in tensors.items():
        assert (identity, flag) == before[1][name][:2]
        assert torch.equal(value, before[1][name][2])


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")
def test_a_refused_conversion_leaves_the_model_as_it_was(case):
    build, options, text = REFUSED[case]
    model = build()
    before = everything(model)
    with pytest.raises((UnsupportedModelError, ValueError), match=text) as caught:
        convert_to_aanet(model, **options)
    assert str(caught.value).endswith(".")
    assert_unchanged(model, before)
