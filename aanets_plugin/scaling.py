"""The block types: what learns in a branch. Everything, only the scaling weights φ, or nothing.

Weights that stop learning become buffers of the same names. So `module.parameters()` is exactly
what learns, and checkpoints keep their keys. The module object stays; its class becomes a subclass
of the class that it had. A parameter that somebody still has, such as an optimizer, comes back as
the same object.
"""

from __future__ import annotations

import copyreg
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils.weak import TensorWeakRef

from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.read_only import ReadOnly

KERNEL_LAYERS = (_ConvNd, nn.Linear)
"""The layers whose weight is frozen and scaled by φ in a scaling branch."""
SCALING_NAMES = ("phi", "delta", "held")
"""The attributes that a layer gets when it is scaled."""

# The parameters that became buffers, by module and name. Not in the modules: a copy of a module, or
# one from a file, must not take the parameters of the original.
_taken: weakref.WeakKeyDictionary[nn.Module, dict[str, TensorWeakRef]] = weakref.WeakKeyDictionary()


class FrozenParameters(nn.Module):
    """Mixin for the class of a module whose parameters became buffers.

    `held` has their names, and whether they learned before.
    """

    prefix = ""
    held: dict[str, bool]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A class made at run time cannot be pickled by name. Pickle its two base classes instead.
        reduced: Any = super().__reduce_ex__(protocol)
        if reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced
        return _blank, type(self).__bases__, *reduced[2:]


class Scaled(FrozenParameters):
    """A layer with weight W ⊙ φ, frozen W and learned φ (Eq. 1). Its own forward is used.

    The attribute `weight` is the product, which cannot be written into. The buffer `weight` is the
    frozen W. The parameter is δ = φ − 1, so that weight decay of any kind pulls φ to 1 and the
    layer to W, not to 0.
    """

    prefix = "Scaled"
    delta: nn.Parameter
    _computes = False

    @property
    def phi(self) -> Tensor:
        """φ = 1 + δ."""
        if torch.compiler.is_compiling():
            return 1 + self.delta
        return (1 + _whole(self.delta)).as_subclass(ReadOnly)

    @property
    def weight(self) -> Tensor:
        """The product W ⊙ φ, which cannot be written into."""
        kernel: Tensor = self._buffers["weight"]  # type: ignore[assignment]
        if torch.compiler.is_compiling():
            return _laid_out_as(kernel, kernel * (1 + self.delta))
        if self._computes:
            return kernel * (1 + self.delta)
        return (kernel * (1 + _whole(self.delta))).as_subclass(ReadOnly)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the layer with the weight W ⊙ φ."""
        if torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        vars(self)["_computes"] = True
        try:
            return super().forward(*args, **kwargs)
        finally:
            vars(self).pop("_computes", None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("weight", "phi") and isinstance(value, nn.Parameter):
            raise UnsupportedModelError(
                f"{name} = Parameter(…): the weight of a scaled layer is W·φ, with a frozen W. "
                f"Replace weights before the conversion or in the base phase; thaw_base(model) "
                f"goes back to it."
            )
        if name == "weight":  # by load_state_dict(assign=True), which may be halfway
            self._buffers["weight"] = value
        else:
            super().__setattr__(name, value)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        phi = state_dict.pop(f"{prefix}phi", None)
        if phi is not None:  # saved when the parameter was φ itself
            state_dict[f"{prefix}delta"] = phi - 1
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class Frozen(FrozenParameters):
    """A module that learns nothing and stays in eval mode, so that its statistics do not change."""

    prefix = "Frozen"

    def train(self, mode: bool = True) -> Frozen:
        """Stay in eval mode, whatever `mode` is."""
        return super().train(False)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor, gathered from all processes if FSDP2 keeps it in shards between forwards."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _laid_out_as(kernel: Tensor, product: Tensor) -> Tensor:
    """The product in the memory format of the kernel, whatever inductor would choose.

    An earlier version of this package met a layout that crashed the backward of convolutions on the
    CPU. Eager mode computes in the kernel's own format, too.
    """
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(kernel.ndim)
    if last is not None and kernel.is_contiguous(memory_format=last):
        return product.contiguous(memory_format=last)
    return product.contiguous()


def scale(tree: nn.Module) -> None:
    """Freeze the kernels in `tree` and add φ = 1 to each. Normalization layers keep learning."""
    for module in list(tree.modules()):
        if isinstance(module, KERNEL_LAYERS):
            weight = module.weight
            shape = (*weight.shape[:2], *(1 for _ in weight.shape[2:]))
            delta = nn.Parameter(weight.new_zeros(shape), requires_grad=weight.requires_grad)
            _hold(module)
            module.register_parameter("delta", delta)
            _mix_in(Scaled, module)


def freeze(tree: nn.Module) -> None:
    """Freeze everything in `tree`, including the statistics of normalization layers."""
    tree.eval()
    for module in list(tree.modules()):
        _hold(module)
        _mix_in(Frozen, module)


def release(tree: nn.Module, *, training: bool) -> None:
    """Undo `scale` and `freeze`: every weight is a parameter again, with φ multiplied in.

    Weights that did not learn before `scale` or `freeze`, and those whose φ does not, do not learn.
    `training` is the new mode of frozen modules. Other modules keep their mode.
    """
    back: set[nn.Parameter] = set()
    for module in list(tree.modules()):
        if isinstance(module, FrozenParameters):
            values, learns = dict(module._buffers), module.held
            if isinstance(module, Scaled):
                # Not in place, so that a change of state that fails can be undone.
                values["weight"] = module.weight.detach().clone()
                learns = {**learns, "weight": module.delta.requires_grad}
                del module.delta
            else:
                module.training = training
            module.__class__ = type(module).__bases__[1]
            del vars(module)["held"]
            for name, flag in learns.items():
                del module._buffers[name]
                parameter = _given_back(module, name, values[name], back)  # type: ignore[arg-type]
                parameter.requires_grad_(flag)
                module.register_parameter(name, parameter)


@torch.no_grad()
def absorb(tree: nn.Module) -> None:
    """Multiply φ into θ_base and set φ to 1, in place. The outputs stay the same."""
    for module in scaled_layers(tree):
        kernel = module._buffers["weight"]
        kernel.mul_(module.phi)  # type: ignore[union-attr]
        module.delta.zero_()
        module.delta.grad = None  # it belongs to the φ before


def scaled_layers(tree: nn.Module) -> Iterator[Scaled]:
    """Yield the layers in `tree` that have a φ."""
    return (module for module in tree.modules() if isinstance(module, Scaled))


RULES: dict[str, Callable[[nn.Module], None]] = {
    "all": lambda tree: None,
    "scaling": scale,
    "frozen": freeze,
}
"""What each block type of the paper (Table 1) does to a branch in which everything learns."""


def _hold(module: nn.Module) -> None:
    """Turn the module's own parameters into buffers of the same names, listed in `held`."""
    own = {name: value for name, value in module._parameters.items() if value is not None}
    for name, value in own.items():
        del module._parameters[name]
        # A copy, since an optimizer that still has the parameter may go on changing it.
        module.register_buffer(name, value.detach().clone())
    vars(module)["held"] = {name: value.requires_grad for name, value in own.items()}
    _taken[module] = {name: TensorWeakRef(value) for name, value in own.items()}


def _given_back(
    module: nn.Module, name: str, value: Tensor, back: set[nn.Parameter]
) -> nn.Parameter:
    """Return a parameter with this value: the one that `_hold` took, if it still exists.

    Layers that shared one may have different values now. Then only the first gets it; `back` has
    those that were given back.
    """
    new = nn.Parameter(value, requires_grad=False)
    taken = _taken.get(module, {}).get(name)
    old: Any = None if taken is None else taken()
    if old is None or (old in back and not torch.equal(old, value)):
        return new
    try:
        old.data, old.grad = value, None
    except RuntimeError:  # the model was moved to another kind of device
        return new
    back.add(old)
    return old  # type: ignore[no-any-return]


def _mix_in(mixin: Any, module: Any) -> None:
    module.__class__ = _mixed(mixin, type(module))  # type: ignore[arg-type]


@functools.cache
def _mixed(mixin: Any, plain: Any) -> Any:
    return type(mixin.prefix + plain.__name__, (mixin, plain), {"__module__": plain.__module__})


def _blank(mixin: Any, plain: Any) -> Any:
    cls = _mixed(mixin, plain)
    return cls.__new__(cls)
