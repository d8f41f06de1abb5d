"""Channels-last memory format: the same numbers up to rounding, in less time."""

import copy

import torch
from torch import Tensor, nn

from aanets_plugin.modes import evaluating


def to_channels_last(net: nn.Module) -> None:
    """Store the kernels of all 2d convolutions with the channels last, in place.

    Convolutions return their output in the format of their kernels, so that inputs need not be
    converted.
    """
    net.to(memory_format=torch.channels_last)


def allows_channels_last(net: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether the network has 2d convolutions and computes the same in this format.

    A network that reads the memory of a tensor in a certain order (`x.view(…)`) does not.
    """
    if len(input_shape) != 3 or not any(p.ndim == 4 for p in net.parameters()):
        return False
    tried = copy.deepcopy(net)
    to_channels_last(tried)
    like = next(net.parameters())
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, *input_shape, generator=generator).to(like)
    try:
        with torch.no_grad(), evaluating(net), evaluating(tried):
            expected, found = net(x), tried(x)
    except RuntimeError:
        return False
    return isinstance(found, Tensor) and torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
