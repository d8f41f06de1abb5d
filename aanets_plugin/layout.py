"""Channels-last kernels inside the levels of a folded network, where its code allows for them."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from aanets_plugin.levels import levels

_LAYERS = (
    nn.Conv2d,
    _BatchNorm,
    nn.Identity,
    nn.ReLU,
    nn.SiLU,
    nn.Hardswish,
    nn.GELU,
    nn.Dropout,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)
_FUNCTIONS = (operator.add, operator.iadd, operator.mul, torch.add, torch.relu, F.relu)
_METHODS = ("add", "add_", "relu", "relu_")


def lay_out_channels_last(model: nn.Module, graphs: dict[nn.Module, fx.Graph]) -> None:
    """Convolutions run faster on channels-last tensors. A level takes and gives contiguous ones, so
    that the rest of the network sees no difference; inside, nothing may depend on
    the layout, as a `view` does: `graphs` shows the code of every module."""
    for level in levels(model):
        if all(_is_free_of_layout(branch, graphs) for branch in level.branches):
            level.branches.to(memory_format=torch.channels_last)
            level.register_forward_pre_hook(_enter)
            level.register_forward_hook(_leave)


def _enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Once for all branches, and before a shortcut meets a convolution's output."""
    return args[0].contiguous(memory_format=torch.channels_last), *args[1:]


def _leave(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return output.contiguous() if isinstance(output, Tensor) else output


def _is_free_of_layout(module: nn.Module, graphs: dict[nn.Module, fx.Graph]) -> bool:
    if isinstance(module, _LAYERS) or (isinstance(module, nn.Sequential) and not len(module)):
        return True
    graph = graphs.get(module)
    return (
        graph is not None
        and all(_is_free_node(node) for node in graph.nodes)
        and all(_is_free_of_layout(child, graphs) for child in module.children())
    )


def _is_free_node(node: fx.Node) -> bool:
    if node.op == "call_function":
        return node.target in _FUNCTIONS
    if node.op == "call_method":
        return node.target in _METHODS
    if node.op == "output":
        return isinstance(node.args[0], fx.Node)
    return node.op in ("placeholder", "call_module")
