"""Parameters, FLOPs and memory of a network, and the strict memory budget of the paper."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.checks import check_module, integer, positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.levels import Branches
from aanets_plugin.modes import evaluating
from aanets_plugin.scaling import FrozenParameters, scaled_layers

MB = 2**20


@dataclass(frozen=True)
class Profile:
    """The cost columns of the paper's Table 1. Print it to see them as text."""

    learnable: int
    """Parameters that the lower level learns."""
    parameters: int
    """Learnable and frozen parameters."""
    flops: int
    """Multiply-adds of one forward with one input."""
    parameter_bytes: int
    exemplar_bytes: int

    @property
    def memory(self) -> int:
        """Bytes of all parameters and exemplars."""
        return self.parameter_bytes + self.exemplar_bytes

    def __str__(self) -> str:
        return profile_table({"": self})


def profile(model: nn.Module, input_shape: Sequence[int], exemplars: int = 0) -> Profile:
    """Count the parameters, FLOPs and memory of `model`.

    BatchNorm statistics and α do not count, as in the paper. The model is run once, on zeros of
    `input_shape` (channels, height, width) in eval mode. It is not changed. `exemplars` are stored
    images, one byte per value.

    Examples:
        >>> from aanets_plugin.baselines import resnet32
        >>> profile(resnet32(50), (3, 32, 32), exemplars=2000).learnable
        469457
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import, and used here alone

    shape = _checked_shape(input_shape)
    check_module(model)
    if (count := integer(exemplars)) is None or count < 0:
        raise ConfigurationError(f"exemplars={exemplars!r}: must be an integer ≥ 0.")
    weights = _weights(model)
    like = next((w for w in weights if w.is_floating_point()), torch.zeros(0))
    x = torch.zeros(1, *shape, dtype=like.dtype, device=like.device)
    with evaluating(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(x)
    return Profile(
        learnable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        parameters=sum(w.numel() for w in weights),
        flops=counter.get_total_flops() // 2,  # torch counts a multiply-add as two
        parameter_bytes=_bytes(weights),
        exemplar_bytes=count * math.prod(shape),
    )


def profile_table(profiles: Mapping[str, Profile]) -> str:
    """Return the profiles as a text table, one row per name."""
    if not isinstance(profiles, Mapping) or not all(
        isinstance(name, str) and isinstance(p, Profile) for name, p in profiles.items()
    ):
        raise ConfigurationError(
            f"profiles={profiles!r:.80}: must be a dict from names to the results of profile()."
        )
    rows = [("", "learnable", "parameters", "FLOPs", "memory")]
    for name, p in profiles.items():
        memory = f"{p.memory / MB:.2f}MB"
        rows.append(
            (
                name,
                short_count(p.learnable),
                short_count(p.parameters),
                short_count(p.flops),
                memory,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        cells = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


@dataclass(frozen=True)
class MemoryBudget:
    """The strict memory budget: extra parameters are paid for with exemplars.

    `per_class` is the number of exemplars per class of the plain network, `input_shape` is
    (channels, height, width).

    Examples:
        >>> from aanets_plugin import convert_to_aanet
        >>> from aanets_plugin.baselines import resnet32
        >>> budget = MemoryBudget(per_class=20, classes=100, input_shape=(3, 32, 32))
        >>> budget.exemplars_for(convert_to_aanet(resnet32(100), stem="paired"))
        13
    """

    per_class: int
    classes: int
    input_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _checked_shape(self.input_shape)
        positive(self.per_class, "per_class")
        positive(self.classes, "classes")

    def exemplars_for(self, model: nn.Module) -> int:
        """Return the exemplars per class that remain with a converted model.

        The extra parameters take whole images of each class, as in the paper's supplement B.
        """
        extra = _bytes(_extra_weights(model))
        left = self.per_class - math.ceil(extra / math.prod(self.input_shape) / self.classes)
        if left < 1:
            raise ConfigurationError(
                f"per_class={self.per_class}: the extra parameters ({extra / MB:.1f}MB) leave no "
                f"exemplar for each of {self.classes} classes. Use a larger memory, a smaller "
                f"backbone or fewer branches."
            )
        return left


def _weights(module: nn.Module) -> list[Tensor]:
    """Parameters, and buffers that were parameters before they were frozen."""
    held = [
        m._buffers[name]
        for m in module.modules()
        if isinstance(m, FrozenParameters)
        for name in m.held
    ]
    return [*module.parameters(), *(tensor for tensor in held if tensor is not None)]


def _extra_weights(model: nn.Module) -> list[Tensor]:
    """What a converted model has more than a plain one: φ, and all branches but the plastic one."""
    extra: dict[int, Tensor] = {id(layer.delta): layer.delta for layer in scaled_layers(model)}
    for module in model.modules():
        if isinstance(module, Branches):
            for branch in module.branches[1:]:
                extra.update((id(weight), weight) for weight in _weights(branch))
    return list(extra.values())


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _checked_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    sizes: Any = input_shape if isinstance(input_shape, (tuple, list)) else ()
    shape = tuple(integer(size) or 0 for size in sizes)
    if not shape or min(shape) < 1:
        raise ConfigurationError(
            f"input_shape={input_shape!r}: must be the shape of one input, such as (3, 32, 32)."
        )
    return shape


def short_count(count: int) -> str:
    """A large number in three digits and a letter: 530K."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            digits = ".3g" if count < 100 * size else ".0f"
            return f"{count / size:{digits}}{unit}"
    return str(count)
