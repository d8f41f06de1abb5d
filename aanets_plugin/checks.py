"""Argument validation."""

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from aanets_plugin.errors import ConfigurationError, NotAModuleError, UnsupportedModelError


def integer(value: Any) -> int | None:
    """`value` as an int if it is an integer of Python, numpy or torch, otherwise None."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def positive(value: Any, name: str) -> int:
    """`value` as an int; an error that calls it `name` unless it is an integer ≥ 1."""
    number = integer(value)
    if number is None or number < 1:
        raise ConfigurationError(f"{name}={value!r}: must be an integer ≥ 1.")
    return number


def check_module(model: Any) -> None:
    """Check that a model is a torch.nn.Module."""
    if not isinstance(model, nn.Module):
        raise NotAModuleError(f"model={model!r:.80}: must be a torch.nn.Module.")


def real(value: Any) -> float | None:
    """`value` as a float if it is a finite number of Python, numpy or torch, otherwise None."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer that no float holds
        return None
    return number if math.isfinite(number) else None


def in_range(value: Any, name: str, low: float, below: float = math.inf) -> float:
    """`value` as a float; an error that calls it `name` unless it is ≥ `low` and < `below`."""
    number = real(value)
    if number is None or not low <= number < below:
        limit = "finite" if below == math.inf else f"< {below:g}"
        raise ConfigurationError(f"{name}={value!r}: must be a number ≥ {low:g} and {limit}.")
    return number


def check_flags(**values: Any) -> None:
    """Check that every value is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name}={value!r}: must be True or False.")


def check_function(value: Any, name: str, call: str) -> None:
    """Check that a value is None or can be called; `call` shows how it is called."""
    if value is not None and not callable(value):
        raise ConfigurationError(f"{name}={value!r:.80}: must be a function, called as {call}.")


def check_positive(**values: float) -> None:
    """Check that every value is greater than zero."""
    for name, value in values.items():
        if not value > 0:
            raise ConfigurationError(f"{name}={value}: must be > 0.")


def check_shapes(pattern: str, **tensors: Tensor) -> None:
    """Check the shape of each tensor against its part of `pattern`; parts are separated by commas.

    A name in the pattern is any size, but the same wherever the name occurs. A number is that size.

    Examples:
        >>> from torch import zeros
        >>> check_shapes("batch dimensions, batch", features=zeros(8, 64), targets=zeros(8))
    """
    sizes: dict[str, int] = {}
    parts = [part.split() for part in pattern.split(",")]
    for names, tensor in zip(parts, tensors.values(), strict=True):
        fits = len(names) == tensor.ndim
        for name, size in zip(names, tensor.shape, strict=False):
            fits &= sizes.setdefault(name, int(name) if name.isdigit() else size) == size
        if not fits:
            given = (f"{name} has the shape {tuple(t.shape)}" for name, t in tensors.items())
            wanted = (f"[{', '.join(names)}]" for names in parts)
            raise ConfigurationError(f"{', '.join(given)}: must be {' and '.join(wanted)}.")


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter is in shards on several processes (FSDP2)."""
    return hasattr(parameter, "full_tensor")


def require_whole(model: nn.Module, what: str) -> None:
    """Check that no parameter is in shards on several processes (FSDP2)."""
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise UnsupportedModelError(
                f"{what}: {name} is sharded by fully_shard. Gather the weights with "
                f"torch.distributed.checkpoint.state_dict.get_model_state_dict, load them into a "
                f"model that is not sharded, and pass that. Shard a model after begin_phase(), "
                f"because the end of the base phase adds parameters."
            )


def shorten(items: Iterable[Any], limit: int = 8) -> str:
    """The first items as text, for an error message."""
    shown = [str(item) for item in items]
    more = f", … ({len(shown)} in all)" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more
