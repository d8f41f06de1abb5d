"""fold: the same outputs from a copy without φ and without the BatchNorms that fuse."""

from __future__ import annotations

import copy
import functools

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, StdConv2d
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import weight_norm
from torchvision.models import resnet18

from aanets_plugin import UnsupportedModelError, convert_to_aanet, fold, levels, packing
from aanets_plugin.baselines import CifarResNet
from aanets_plugin.scaling import scaled_layers
from tests.networks import (
    AttentionNet,
    HeadOverDictNet,
    InPlaceNet,
    relative_error,
    shake,
    tensors,
)

# float32: fusing reorders the roundings of some dozens of layers, each of about 1e-7.
SAME = 1e-4


def timm_net(name, **options):
    return functools.partial(timm.create_model, name, num_classes=5, **options)


SHORT = {"layers": (1, 1, 1, 1), "channels": (16, 16, 24, 32)}  # of networks with bottlenecks

NETWORKS = {
    "torchvision-resnet18": lambda: resnet18(num_classes=5),
    "cifar": lambda: CifarResNet(1, 5),
    "dict": HeadOverDictNet,
    "attention": AttentionNet,
    "in-place": InPlaceNet,
    "resnet10t": timm_net("resnet10t"),  # a stem of three convolutions
    "test_resnet": timm_net("test_resnet"),
    "res2net": timm_net("res2net50_26w_4s", **SHORT),
    "resnest14d": timm_net("resnest14d", channels=(16, 16, 24, 32)),
    "skresnet18": timm_net("skresnet18", channels=(16, 32, 32, 64)),
    "legacy_seresnet18": timm_net("legacy_seresnet18"),
    "regnety_002": timm_net("regnety_002"),
    "resnetv2": timm_net("resnetv2_50", layers=(1, 1, 1, 1), channels=(16, 32, 32, 64)),
    "resnetv2-group-norm": timm_net(
        "resnetv2_50d_gn", layers=(1, 1, 1, 1), channels=(128, 128, 128, 128)
    ),
    "resnetv2-standardised-weights": timm_net(
        "resnetv2_50",
        layers=(1, 1, 1, 1),
        channels=(16, 32, 32, 64),
        conv_layer=StdConv2d,
        norm_layer=BatchNormAct2d,
    ),
}
FREE_OF_BATCH_NORM = ("torchvision-resnet18", "cifar", "dict", "attention", "resnet10t")


def trained(net, **options):
    """A converted network in eval mode, in which nothing is as it was initialised."""
    convert_to_aanet(shake(net), **options)
    shake(net)
    with torch.no_grad():
        for parameter in net.parameters():
            spread = parameter.std() if parameter.numel() > 1 else parameter.abs().sum()
            parameter.add_(0.3 * spread.clamp_min(0.3) * torch.randn_like(parameter))
        for level in levels(net):
            if level.alpha is not None:
                level.alpha.copy_(torch.rand(len(level.branches)).softmax(0))
    return net.eval()


def images(size=32):
    return torch.randn(4, 3, size, size)


def assert_folds(net, x=None, same=SAME):
    """Check outputs of the copy, and that it is one; returns it."""
    x = images() if x is None else x
    with torch.no_grad():
        expected = net(x.clone())
        folded = fold(net)
        assert relative_error(folded(x.clone()), expected) < same
    assert not any(name.endswith("phi") for name in folded.state_dict())
    assert not any(True for _ in scaled_layers(folded))
    assert not any(p.requires_grad for p in folded.parameters())
    assert not folded.training
    return folded


@torch.no_grad()
def own_rounding(net, x):
    """How far float32 takes a network from what it computes in float64."""
    exact = copy.deepcopy(net).double()(x.double())
    return relative_error([tensor.double() for tensor in tensors(net(x.clone()))], tensors(exact))


@pytest.mark.parametrize("name", NETWORKS)
def test_folding_is_exact_but_for_rounding(name):
    assert_folds(trained(NETWORKS[name]()).double(), images().double(), same=1e-10)


def batch_norms(net):
    return [module for module in net.modules() if isinstance(module, _BatchNorm)]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_network_gives_the_same_outputs(name, monkeypatch):
    monkeypatch.setattr(packing, "LARGE", 1)  # every convolution that can be packed is
    net = trained(NETWORKS[name]())
    x = images()
    # Some of these networks, as shaken, make more of a rounding than others; which way it goes
    # depends on the processor.
    folded = assert_folds(net, x, same=max(SAME, 5 * own_rounding(net, x)))
    if name in FREE_OF_BATCH_NORM:
        assert batch_norms(net)
        assert not batch_norms(folded)

    # The comparison notices φ: without it the outputs are others.
    expected = net(x.clone())
    with torch.no_grad():
        for layer in scaled_layers(net):
            layer.phi.fill_(1.0)
    assert relative_error(net(x.clone()), expected) > 100 * SAME


@pytest.mark.parametrize("stem", ["stable", "plastic", "paired"])
@pytest.mark.parametrize(
    "blocks", [("scaling", "frozen"), ("frozen",), ("scaling",), ("all", "all", "scaling")]
)
def test_every_kind_of_branch_and_stem_folds(blocks, stem):
    folded = assert_folds(trained(CifarResNet(1, 5), blocks=blocks, stem=stem))
    assert not any(batch_norms(level) for level in levels(folded))
    # The host's code runs a paired stem as one module after another, each with all its branches.
    assert len(batch_norms(folded)) == (len(blocks) if stem == "paired" else 0)


def test_a_plain_network_folds():
    net = shake(CifarResNet(1, 5)).eval()
    assert batch_norms(net)
    assert not batch_norms(assert_folds(net))


def test_what_cannot_be_fused_is_left():
    standardised = trained(NETWORKS["resnetv2-standardised-weights"]())
    assert len(batch_norms(assert_folds(standardised))) == len(batch_norms(standardised))
    plain = trained(NETWORKS["resnetv2"]())
    assert 0 < len(batch_norms(assert_folds(plain))) < len(batch_norms(plain))


@pytest.mark.parametrize("training", [True, False])
def test_folding_leaves_the_original_as_it_was(training):
    net = trained(CifarResNet(1, 5), blocks=("scaling", "frozen"), stem="paired").train(training)
    net.layer1.branches[0].train(not training)  # a mode of its own, somewhere inside
    state = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    learning = {name for name, p in net.named_parameters() if p.requires_grad}
    classes = [type(module) for module in net.modules()]

    folded = fold(net)
    with torch.no_grad():  # nor does anything done to the copy reach it
        for parameter in folded.parameters():
            parameter.zero_()

    assert list(net.state_dict()) == list(state)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
    assert [module.training for module in net.modules()] == modes
    assert {name for name, p in net.named_parameters() if p.requires_grad} == learning
    assert [type(module) for module in net.modules()] == classes
    assert list(folded.state_dict()) != list(state)


def test_every_module_of_a_folded_network_is_in_eval_mode():
    folded = fold(trained(CifarResNet(1, 5)))
    assert not any(module.training for module in folded.modules())


def test_a_folded_network_goes_through_train_and_back_unchanged():
    net = trained(CifarResNet(1, 5))
    folded, x = fold(net), images()
    expected = folded(x)
    folded.train()(x)
    assert torch.equal(folded.eval()(x), expected)

    net.train()(x)  # where BatchNorm is left, a forward in train mode is noticed
    assert relative_error(net.eval()(x), expected) > 100 * SAME


# Networks whose code must be read, because the order of their modules says something else.


def small_net(*blocks):
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(*blocks),
        nn.Sequential(*(type(block)() for block in blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


class PreActivation(nn.Module):
    """Registered as conv1, bn1, conv2, bn2; run as bn1, conv1, bn2, conv2."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(4)

    def forward(self, x):
        out = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(out))) + x


class SharedConvolution(nn.Module):
    """One convolution, run twice, each time with another BatchNorm after it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.bn2 = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn2(self.conv(F.relu(self.bn1(self.conv(x))))) + x


class SharedNorm(nn.Module):
    """One BatchNorm after two convolutions."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(4, 4, 1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv2(F.relu(self.bn(self.conv1(x))))) + x


class OneModuleTwoNames(nn.Module):
    """The same convolution under two names, with a BatchNorm after one of them."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = self.conv1

    def forward(self, x):
        return self.conv2(F.relu(self.bn1(self.conv1(x)))) + x


class ReadBeforeTheNorm(nn.Module):
    """What the convolution gives is read by the BatchNorm and by the sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        out = self.conv(x)
        return F.relu(self.bn(out)) + out + x


class ActivationBetween(nn.Module):
    """Registered next to each other, with a ReLU in between when run."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(F.relu(self.conv(x))) + x


class DataDependent(nn.Module):
    """A forward that cannot be traced: what runs depends on the numbers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        out = self.conv(x)
        if out.mean() > 1e6:
            return out + x
        return self.bn(out) + x


class BatchStatistics(nn.Module):
    """A BatchNorm without running statistics: there is nothing to fuse."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x):
        return self.bn(self.conv(x)) + x


@pytest.mark.parametrize(
    ("block", "left"),  # BatchNorms that stay in each block
    [
        (PreActivation, 1),
        (SharedConvolution, 2),
        (SharedNorm, 1),
        (OneModuleTwoNames, 1),
        (ReadBeforeTheNorm, 1),
        (ActivationBetween, 1),
        (DataDependent, 1),
        (BatchStatistics, 1),
    ],
)
def test_a_batch_norm_is_fused_only_where_the_code_says_so(block, left):
    net = trained(small_net(block(), block()))
    folded = assert_folds(net)
    # Two levels of two branches with two blocks; the stem's BatchNorm is always fused.
    assert len(batch_norms(folded)) == 8 * left


class Switched(nn.Module):
    """A block with an option by which its BatchNorm is left out."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x, norm=True):
        out = self.conv(x)
        return (self.bn(out) if norm else out) + x


class SwitchedOff(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Switched()

    def forward(self, x):
        return F.relu(self.inner(x, norm=False)) + x


class ReadsTheKernel(nn.Module):
    """The kernel itself is used a second time, beside its layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv(x)) + F.conv2d(x, self.conv.weight, padding=1)


class ReachesInside(nn.Module):
    """A convolution of an inner module is used from outside as well."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x):
        return self.inner(x) + self.inner[0](x)


def hooked_net():
    """A hook on a convolution changes what it gives."""
    net = small_net(ActivationBetween())
    net[0][0].register_forward_hook(lambda module, args, output: output.clamp_min(0))
    return net


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: small_net(SwitchedOff()), id="called-with-an-option"),
        pytest.param(lambda: small_net(ReadsTheKernel()), id="kernel-read"),
        pytest.param(lambda: small_net(ReachesInside()), id="used-from-outside"),
        pytest.param(hooked_net, id="hook"),
    ],
)
def test_a_convolution_that_something_else_reads_keeps_its_batch_norm(make):
    assert_folds(trained(make()))


def test_a_convolution_with_a_computed_weight_folds():
    net = small_net(ActivationBetween())
    weight_norm(net[0][0])
    assert_folds(trained(net, blocks=("all", "all")))


class Remembers(nn.Module):
    """A block that keeps its features and counts its calls."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.calls = 0
        self.features = None

    def forward(self, x):
        self.calls += 1
        self.features = self.conv(x)
        return self.features + x


def test_folding_does_not_run_what_a_forward_does_beside_its_output():
    folded = fold(trained(small_net(Remembers())))
    blocks = [module for module in folded.modules() if isinstance(module, Remembers)]
    assert [(block.calls, block.features) for block in blocks] == [(0, None)] * len(blocks)


def test_groups_padding_biases_and_a_norm_without_weights_fold():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(4, 8, 3, padding=1, groups=2, bias=True, padding_mode="reflect")
            self.bn1 = nn.BatchNorm2d(8, affine=False)
            self.conv2 = nn.Conv2d(8, 4, 1)

        def forward(self, x):
            return self.conv2(F.relu(self.bn1(self.conv1(x)))) + x

    assert not batch_norms(assert_folds(trained(small_net(Biased()))))


def test_a_folded_copy_of_what_is_no_module_is_refused():
    with pytest.raises(UnsupportedModelError, match="'layer1'"):
        fold("layer1")
