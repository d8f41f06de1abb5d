"""Finds the residual stages and the stem of a network by its modules and their code."""

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from aanets_plugin.additions import adds_tensors
from aanets_plugin.checks import check_module


def find_stages(model: nn.Module) -> list[str]:
    """Return the dotted names of the residual stages in forward order; empty if there are none.

    A residual block has convolutions and an addition in its own forward. The stages are the modules
    that hold such blocks, at the first depth below the root at which there are several of them.

    Examples:
        >>> from torchvision.models import resnet18
        >>> find_stages(resnet18())
        ['layer1', 'layer2', 'layer3', 'layer4']
    """
    check_module(model)
    path, parent = "", model
    while True:
        residual = _residual_children(parent)
        inner = _holder_of_stages(parent, residual)
        if inner is None:
            return [path + name for name in residual]
        # A residual block beside it is a stem or a neck.
        path, parent = f"{path}{inner}.", parent.get_submodule(inner)


def find_blocks(model: nn.Module) -> list[str]:
    """Return the names of the residual blocks, without those that are inside another one."""
    names: list[str] = []
    for name, module in model.named_modules():
        inside = names and f"{name}.".startswith(f"{names[-1]}.")
        if name and not inside and _is_residual_block(module):
            names.append(name)
    return names


def find_stem(model: nn.Module, first_stage: str) -> list[str]:
    """Return the names of the modules with weights that come before the first stage.

    They are siblings of the stage, or of its closest parent with a convolution before it. A module
    with a linear layer is never part of the stem.
    """
    *parents, name = first_stage.split(".")
    while True:
        path = "".join(f"{parent}." for parent in parents)
        before: list[str] = []
        for sibling, module in model.get_submodule(path[:-1]).named_children():
            if sibling == name:
                break
            if any(True for _ in module.parameters()) and not _contains(module, nn.Linear):
                before.append(path + sibling)
        if any(_contains(model.get_submodule(sibling), _ConvNd) for sibling in before):
            return before
        if not parents:
            return []
        name = parents.pop()


def common_parent(names: list[str]) -> str:
    """Return the dotted name of the deepest module that contains all of them; "" is the root."""
    common: list[str] = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def is_container(module: nn.Module) -> bool:
    """Whether the module has no forward, such as a ModuleList. The host calls what is in it."""
    of_class = inspect.getattr_static(type(module), "forward")
    return of_class is nn.Module.forward and "forward" not in vars(module)


def _holder_of_stages(parent: nn.Module, residual: list[str]) -> str | None:
    """Return the child that holds all stages; None if the residual children are the stages."""
    inside = {name: _residual_children(parent.get_submodule(name)) for name in residual}
    nested = [name for name in residual if inside[name]]
    if len(nested) == 1 and not _is_row_of_blocks(parent.get_submodule(nested[0])):
        return nested[0]
    # Beside a stem that has several blocks: the stages add nothing themselves, their blocks do.
    holders = [
        name
        for name in nested
        if len(inside[name]) > 1
        and not any(
            _is_residual_block(parent.get_submodule(f"{name}.{stage}")) for stage in inside[name]
        )
    ]
    return holders[0] if len(holders) == 1 else None


def _residual_children(module: nn.Module) -> list[str]:
    """Names of the children that are or contain a residual block.

    The modules in a container count as children. Of a child and another one that contains it, such
    as a Sequential of all stages beside the stages, it is the inner one.
    """
    children: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if is_container(child):
            inner = _residual_children(child)
            children.update((f"{name}.{n}", child.get_submodule(n)) for n in inner)
        elif any(_is_residual_block(inner) for inner in child.modules()):
            children[name] = child
    modules = set(children.values())
    return [n for n, c in children.items() if not any(m in modules for m in _inside(c))]


def _inside(module: nn.Module) -> Iterator[nn.Module]:
    return itertools.islice(module.modules(), 1, None)


def _is_row_of_blocks(module: nn.Module) -> bool:
    """Whether all children are innermost residual blocks. Then the module is one stage."""
    return all(
        _is_residual_block(child) and not _residual_children(child) for child in module.children()
    )


def _is_residual_block(module: Any) -> bool:
    return adds_tensors(type(module)) and _contains(module, _ConvNd)  # type: ignore[arg-type]


def _contains(module: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(inner, kind) for inner in module.modules())
