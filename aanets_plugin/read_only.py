"""ReadOnly: a tensor that is computed at each access, so that writing into it would be lost."""

from typing import Any

import torch
from torch import Tensor

from aanets_plugin.errors import UnsupportedModelError

_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_WRITES = {"__setitem__", "__set__", "__delete__", *(f"__i{name}__" for name in _OPERATORS)}


class ReadOnly(Tensor):
    """A view of a computed tensor that refuses to be written into, and so do its views.

    It can be used in computations, with gradients. The results are ordinary tensors.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        in_place = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
        written = [*args[:1], kwargs.get("tensor"), kwargs.get("input")] if in_place else []
        if any(isinstance(target, ReadOnly) for target in [*written, kwargs.get("out")]):
            raise UnsupportedModelError(
                "The weight of a scaled layer is W·φ, computed at each access, so a change of it "
                "would be lost. W is its buffer 'weight', φ − 1 its parameter 'delta'. Change "
                "weights before the conversion or in the base phase; thaw_base(model) goes back "
                "to it."
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            shares = isinstance(result, Tensor) and any(
                isinstance(arg, ReadOnly) and _storage(arg) == _storage(result) for arg in args
            )
            return result.as_subclass(ReadOnly) if shares else result


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata
