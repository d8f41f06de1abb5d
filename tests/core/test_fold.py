"""fold: the same outputs from a copy without φ and without the BatchNorms that fuse."""

from __future__ import annotations

import copy

import pytest
import torch

from aanets_plugin import UnsupportedModelError, fold, levels
from aanets_plugin.baselines import CifarResNet
from aanets_plugin.scaling import scaled_layers
from tests.core.fold_setup import SAME, assert_folds, batch_norms, images, trained
from tests.networks import (
    AttentionNet,
    HeadOverDictNet,
    InPlaceNet,
    relative_error,
    resnet18,
    shake,
    tensors,
)


def timm_net(name, layers_of_timm=None, **options):
    """A maker of a network of timm; `layers_of_timm` are options that name one of its layers."""

    def make():
        timm = pytest.importorskip("timm")
        kinds = {key: getattr(timm.layers, kind) for key, kind in (layers_of_timm or {}).items()}
        return timm.create_model(name, num_classes=5, **options, **kinds)

    return make


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
        layers_of_timm={"conv_layer": "StdConv2d", "norm_layer": "BatchNormAct2d"},
    ),
}
FREE_OF_BATCH_NORM = ("torchvision-resnet18", "cifar", "dict", "attention", "resnet10t")


@torch.no_grad()
def own_rounding(net, x):
    """How far float32 takes a network from what it computes in float64."""
    exact = copy.deepcopy(net).double()(x.double())
    return relative_error([tensor.double() for tensor in tensors(net(x.clone()))], tensors(exact))


@pytest.mark.parametrize("name", NETWORKS)
def test_folding_is_exact_but_for_rounding(name):
    assert_folds(trained(NETWORKS[name]()).double(), images().double(), same=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_network_gives_the_same_outputs(name):
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
            layer.delta.zero_()
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


def test_a_folded_copy_of_what_is_no_module_is_refused():
    with pytest.raises(UnsupportedModelError, match="'layer1'"):
        fold("layer1")
