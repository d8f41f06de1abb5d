"""Channels-last kernels inside the levels of a folded network, where its code allows for them."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from aanets_plugin.levels import AdaptiveLevel, levels
from aanets_plugin.packing import pack_convolutions

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
    """Let levels, and max pooling outside them, compute on channels-last tensors, which is faster.

    Inside a level nothing may depend on the layout, as a `view` does; `graphs` shows the code of
    every module. The rest of the network sees no difference: what leaves a level is contiguous,
    unless it only goes to the next one.
    """
    free = [level for level in levels(model) if _is_free_of_layout(level, graphs)]
    for level in free:
        level.branches.to(memory_format=torch.channels_last)
        pack_convolutions(level.branches)
    within = {module for level in levels(model) for module in level.modules()}
    pools = [m for m in model.modules() if isinstance(m, nn.MaxPool2d) and m not in within]
    islands = {*free, *pools} if free else set()
    handed_on = _handed_on(islands, graphs)
    for island in islands:
        island.register_forward_pre_hook(_enter)
        if island not in handed_on:
            island.register_forward_hook(_leave)


def _handed_on(islands: set[nn.Module], graphs: dict[nn.Module, fx.Graph]) -> set[nn.Module]:
    """The islands whose outputs go to other islands and nowhere else, as far as code is seen."""
    seen: dict[nn.Module, bool] = {}
    for parent, graph in graphs.items():
        calls = {node: _called(parent, node) for node in graph.nodes}
        for node, module in calls.items():
            if module in islands:
                only = bool(node.users) and all(calls[user] in islands for user in node.users)
                seen[module] = seen.get(module, True) and only
    return {module for module, only in seen.items() if only}


def _called(parent: nn.Module, node: fx.Node) -> nn.Module | None:
    return parent.get_submodule(str(node.target)) if node.op == "call_module" else None


def _enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Once for all branches, and before a shortcut meets a convolution's output."""
    return args[0].contiguous(memory_format=torch.channels_last), *args[1:]


def _leave(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return output.contiguous() if isinstance(output, Tensor) else output


def _is_free_of_layout(module: nn.Module, graphs: dict[nn.Module, fx.Graph]) -> bool:
    if isinstance(module, _LAYERS) or (isinstance(module, nn.Sequential) and not len(module)):
        return True
    if isinstance(module, AdaptiveLevel):
        return all(_is_free_of_layout(branch, graphs) for branch in module.branches)
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
