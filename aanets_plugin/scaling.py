"""How much of a module tree learns: all of it, neuron-level scaling weights φ alone, or nothing.

Weights that stop learning turn from parameters into buffers *under the same names*, so that
`module.parameters()` is always exactly what learns, and checkpoints keep their keys. The module
stays where it is; only its class changes, to a subclass of the one it had.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

KERNEL_LAYERS = (_ConvNd, nn.Linear)
"""The layers whose weight is frozen under a φ in a scaling branch."""


class _Held(nn.Module):
    """Mixed into the class of a module some of whose parameters became buffers."""

    prefix = ""
    held: tuple[str, ...]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A class made at run time cannot be pickled by name, so name its two parents instead.
        reduced: Any = super().__reduce_ex__(protocol)
        if reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced
        return _blank, type(self).__bases__, *reduced[2:]


class Scaled(_Held):
    """A convolution W ⊙ φ with frozen W and learned φ (Eq. 1), whatever its own forward does.

    Reading `weight` gives the product; the frozen W itself is the buffer of that name.
    """

    prefix = "Scaled"
    phi: nn.Parameter

    @property
    def weight(self) -> Tensor:
        product: Tensor = self._buffers["weight"] * self.phi  # type: ignore[operator]
        # The layout that inductor chooses by itself crashes the CPU's convolution backward.
        return product.contiguous() if torch.compiler.is_compiling() else product


class Frozen(_Held):
    """A module that learns nothing and stays in eval mode, so that its statistics never move."""

    prefix = "Frozen"

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


def scale(tree: nn.Module) -> None:
    """Freeze every kernel of `tree` under a φ of ones; normalisation layers go on learning."""
    for module in list(tree.modules()):
        if isinstance(module, KERNEL_LAYERS):
            shape = (*module.weight.shape[:2], *(1 for _ in module.weight.shape[2:]))
            _hold(module)
            module.register_parameter("phi", nn.Parameter(module.weight.new_ones(shape)))
            _mix_in(Scaled, module)


def freeze(tree: nn.Module) -> None:
    """Freeze everything in `tree`, statistics of its normalisation layers included."""
    tree.eval()
    for module in list(tree.modules()):
        _hold(module)
        _mix_in(Frozen, module)


def release(tree: nn.Module, *, training: bool) -> None:
    """Undo `scale` and `freeze`: every weight is a parameter again, with φ multiplied in.

    `training` is the mode of what was frozen; other modules keep theirs.
    """
    for module in list(tree.modules()):
        if isinstance(module, _Held):
            if isinstance(module, Scaled):
                absorb(module)
                del module.phi
            else:
                module.training = training
            module.__class__ = type(module).__bases__[1]
            for name in module.__dict__.pop("held"):
                value = module._buffers.pop(name)
                module.register_parameter(name, nn.Parameter(value))  # type: ignore[arg-type]


@torch.no_grad()
def absorb(tree: nn.Module) -> None:
    """θ_base ← φ ⊙ θ_base, φ ← 1 in every scaled layer, in place: the function is the same."""
    for module in scaled_layers(tree):
        kernel = module._buffers["weight"]
        kernel.mul_(module.phi)  # type: ignore[union-attr]
        module.phi.fill_(1.0)


def scaled_layers(tree: nn.Module) -> Iterator[Scaled]:
    return (module for module in tree.modules() if isinstance(module, Scaled))


RULES: dict[str, Callable[[nn.Module], None]] = {
    "all": lambda tree: None,
    "scaling": scale,
    "frozen": freeze,
}
"""The paper's block types (Table 1): what each does to a branch that so far learns everything."""


def _hold(module: nn.Module) -> None:
    """Turn the module's own parameters into buffers of the same names and remember which."""
    names = tuple(name for name, value in module._parameters.items() if value is not None)
    for name in names:
        value = module._parameters.pop(name)
        module.register_buffer(name, value.detach())  # type: ignore[union-attr]
    module.__dict__["held"] = names


def _mix_in(mixin: Any, module: Any) -> None:
    module.__class__ = _mixed(mixin, type(module))  # type: ignore[arg-type]


@functools.cache
def _mixed(mixin: Any, plain: Any) -> Any:
    return type(mixin.prefix + plain.__name__, (mixin, plain), {"__module__": plain.__module__})


def _blank(mixin: Any, plain: Any) -> Any:
    cls = _mixed(mixin, plain)
    return cls.__new__(cls)
