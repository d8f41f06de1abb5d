"""Finds the residual stages and the stem of a network by its modules and their code."""

import dis
import functools
from collections.abc import Iterator
from inspect import isfunction
from types import CodeType
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd


def find_stages(model: nn.Module) -> list[str]:
    """Return the dotted names of the residual stages in forward order; empty if there are none.

    A residual block has convolutions and an addition in its own forward. The stages are the modules
    that hold such blocks, at the first depth below the root at which there are several of them.

    Example:
        >>> from torchvision.models import resnet18
        >>> find_stages(resnet18())
        ['layer1', 'layer2', 'layer3', 'layer4']
    """
    path, parent = "", model
    while True:
        residual = _residual_children(parent)
        nested = [name for name in residual if _residual_children(parent.get_submodule(name))]
        if len(nested) != 1 or _is_row_of_blocks(parent.get_submodule(nested[0])):
            return [path + name for name in residual]
        # One child holds all stages. A residual block beside it is a stem or a neck.
        path, parent = f"{path}{nested[0]}.", parent.get_submodule(nested[0])


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
    return type(module).forward is nn.Module.forward and "forward" not in vars(module)


def _residual_children(module: nn.Module) -> list[str]:
    """Names of the children that are or contain a residual block.

    The modules in a container count as children.
    """
    names = []
    for name, child in module.named_children():
        if is_container(child):
            names += [f"{name}.{inner}" for inner in _residual_children(child)]
        elif any(_is_residual_block(inner) for inner in child.modules()):
            names.append(name)
    return names


def _is_row_of_blocks(module: nn.Module) -> bool:
    """Whether all children are innermost residual blocks. Then the module is one stage."""
    return all(
        _is_residual_block(child) and not _residual_children(child) for child in module.children()
    )


def _is_residual_block(module: Any) -> bool:
    return _adds(type(module)) and _contains(module, _ConvNd)  # type: ignore[arg-type]


def _contains(module: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(inner, kind) for inner in module.modules())


@functools.cache
def _adds(cls: Any) -> bool:
    """Whether the forward of this class, or one of its methods that it calls, has an addition."""
    own = {name for base in cls.__mro__ if base not in nn.Module.__mro__ for name in vars(base)}
    seen: set[str] = set()
    pending = ["forward"] if "forward" in own else []
    while pending:
        function = getattr(cls, name := pending.pop(), None)
        if name in seen or not isfunction(function):
            continue
        seen.add(name)
        for code in _codes(function.__code__):
            for step in dis.get_instructions(code):
                if step.opname in ("BINARY_ADD", "INPLACE_ADD"):  # Python 3.10
                    return True
                if step.opname == "BINARY_OP" and step.argrepr in ("+", "+="):
                    return True
                if step.argval in ("add", "add_"):
                    return True
            pending += [name for name in code.co_names if name in own]
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
