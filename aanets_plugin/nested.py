"""Tensors in nested values: what a stage takes and what it returns."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from aanets_plugin.errors import UnsupportedModelError

TENSORS = (Tensor, fx.Proxy)
"""A tensor, or what stands for one while torch.fx traces a network."""
_CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


def aggregate(outputs: Sequence[Any], alpha: Tensor) -> Any:
    """Return Σ_b α_b · outputs_b (Eq. 3), for every tensor in the outputs of the branches.

    Outputs may be tensors, and tuples, lists, dicts and dataclasses of them. Tensors of integers,
    such as indices and masks, are those of the first branch. Constants must be the same in all
    branches. Anything else is refused.
    """
    first = outputs[0]
    if isinstance(first, TENSORS):
        return weighted_sum(outputs, alpha)
    if isinstance(first, _CONSTANTS) and all(first == other for other in outputs[1:]):
        return first
    parts = [_parts(output) for output in outputs]
    if parts[0] is None or any(part is None or part.keys() != parts[0].keys() for part in parts):
        kinds = " and ".join(dict.fromkeys(f"{output!r:.80}" for output in outputs))
        raise UnsupportedModelError(
            f"The branches of a level return {kinds}, which cannot be summed: must be tensors, or "
            f"tuples, lists, dicts or dataclasses of them, of the same form. Let the stage return "
            f"tensors, or leave it out of `stages`."
        )
    return _rebuilt(first, {k: aggregate([p[k] for p in parts if p], alpha) for k in parts[0]})


def weighted_sum(outputs: Sequence[Any], alpha: Tensor) -> Any:
    """Return `aggregate` of tensors. torch.fx records one call of this, so α stays a buffer."""
    first = outputs[0]
    if not isinstance(first, Tensor):  # a stage that torch.fx has not looked into
        return aggregate(outputs, alpha)
    if not first.is_floating_point() and not first.is_complex():
        return first
    total = first * alpha[0]
    for b in range(1, len(outputs)):
        total = torch.addcmul(total, outputs[b], alpha[b])
    return total


fx.wrap("weighted_sum")


def map_tensors(function: Callable[[Any], Any], value: Any) -> Any:
    """Return `value` with `function` applied to its tensors, in containers of their own."""
    if isinstance(value, TENSORS):
        return function(value)
    parts = _parts(value)
    if parts is None:
        return value
    return _rebuilt(value, {key: map_tensors(function, part) for key, part in parts.items()})


def has_tensor(value: Any) -> bool:
    """Whether there is a tensor in `value`."""
    return isinstance(value, TENSORS) or any(map(has_tensor, (_parts(value) or {}).values()))


def same_form(one: Any, other: Any) -> bool:
    """Whether two values have the same containers with the same keys."""
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return parts is others
    return parts.keys() == others.keys() and all(same_form(parts[k], others[k]) for k in parts)


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return the values in a container by key, index or field name; None for anything else."""
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value if isinstance(value, dict) else None


def _rebuilt(like: Any, parts: dict[Any, Any]) -> Any:
    """Return a container like `like` with other values."""
    if isinstance(like, (tuple, list)):
        items = parts.values()
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    if dataclasses.is_dataclass(like):
        given = {field.name: parts[field.name] for field in dataclasses.fields(like) if field.init}
        new: Any = dataclasses.replace(like, **given)  # type: ignore[type-var]
        for name in parts.keys() - given.keys():
            object.__setattr__(new, name, parts[name])
        return new
    if type(like) is dict:
        return parts
    new = copy.copy(like)  # the constructor may take something else than pairs
    new.update(parts)
    return new
