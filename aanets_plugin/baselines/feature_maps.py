"""The outputs of a network's stages, collected while its own forward runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.levels import levels
from aanets_plugin.stages import find_stages


@contextmanager
def stage_maps(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what each stage gives out, in forward order, in the list of the `with` statement.

    The stages of a converted model are its levels, so the maps are aggregated; those of a plain
    network are its residual stages. Of a stage that gives several tensors, `(list, x)` or a dict,
    the last one counts. Each forward replaces the maps of the one before; they stay after the
    block, the hooks do not.

        >>> with stage_maps(model) as maps:
        ...     logits = model(x)
        >>> [tuple(m.shape) for m in maps]
        [(8, 16, 32, 32), (8, 32, 16, 16), (8, 64, 8, 8)]
    """
    stages: list[nn.Module] = [*levels(model)]
    if not stages:
        stages = [model.get_submodule(name) for name in find_stages(model)]
    if not stages:
        raise UnsupportedModelError(
            f"found neither levels nor residual stages in a {type(model).__name__}; expected a "
            f"converted model or a ResNet"
        )
    maps: list[Tensor] = []
    handles = []
    try:
        for index, stage in enumerate(stages):
            handles.append(stage.register_forward_hook(_Collector(stage, index, maps)))
        yield maps
    finally:
        for handle in handles:
            handle.remove()


class _Collector:
    """The hook of one stage. A copy of the stage carries it along, and there it does nothing."""

    def __init__(self, stage: nn.Module | None, index: int, maps: list[Tensor]) -> None:
        self.stage = stage
        self.index = index
        self.maps = maps

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is not self.stage:
            return
        found = _last_tensor(output)
        if found is None:
            raise UnsupportedModelError(
                f"stage {self.index} gives a {type(output).__name__} without a tensor in it; "
                f"expected a map [batch, channels, height, width]"
            )
        del self.maps[self.index :]
        # The next stage may begin by writing into its input.
        self.maps.append(found.clone())

    def __reduce__(self) -> tuple[Any, ...]:
        return _Collector, (None, self.index, [])


def _last_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        output = list(output.values())
    if not isinstance(output, (tuple, list)):
        return None
    tensors = (_last_tensor(item) for item in reversed(output))
    return next((tensor for tensor in tensors if tensor is not None), None)
