"""A trained network, and the comparison with its folded copy."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from aanets_plugin import convert_to_aanet, fold, levels
from aanets_plugin.scaling import scaled_layers
from tests.networks import relative_error, shake

# float32: fusing reorders the roundings of some dozens of layers, each of about 1e-7.
SAME = 1e-4


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
    assert not any(name.endswith("delta") for name in folded.state_dict())
    assert not any(True for _ in scaled_layers(folded))
    assert not any(p.requires_grad for p in folded.parameters())
    assert not folded.training
    return folded


def batch_norms(net):
    return [module for module in net.modules() if isinstance(module, _BatchNorm)]
