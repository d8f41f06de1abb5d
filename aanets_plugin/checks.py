"""Argument validation."""

import operator
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from aanets_plugin.errors import ConfigurationError, UnsupportedModelError


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


def check_positive(**values: float) -> None:
    """Check that every value is greater than zero."""
    for name, value in values.items():
        if not value > 0:
            raise ConfigurationError(f"{name}={value}: must be > 0.")


def check_shapes(pattern: str, **tensors: Tensor) -> None:
    """Check the shape of each tensor against its part of `pattern`; parts are separated by commas.

    A name in the pattern is any size, but the same wherever the name occurs. A number is that size.

    Example:
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


def require_whole(model: nn.Module, what: str) -> None:
    """Check that no parameter is in shards on several processes (FSDP2)."""
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "full_tensor"):
            raise UnsupportedModelError(
                f"{what}: {name} is sharded by fully_shard. Gather the weights with "
                f"torch.distributed.checkpoint.state_dict.get_model_state_dict, load them into a "
                f"model that is not sharded, and pass that."
            )


def shorten(items: Iterable[Any], limit: int = 8) -> str:
    """The first items as text, for an error message."""
    shown = [str(item) for item in items]
    more = f", … ({len(shown)} in all)" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more
