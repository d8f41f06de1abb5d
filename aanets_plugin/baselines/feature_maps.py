"""Collecting the outputs of a network's stages during its forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.levels import levels
from aanets_plugin.stages import find_stages


@contextmanager
def stage_maps(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the output of each stage, in forward order, in the list that `with` returns.

    The stages of a converted model are its levels, so the maps are the aggregated ones. The stages
    of a plain network are its residual stages. If a stage returns several tensors, in a tuple, list
    or dict, the last one is used. Each forward pass replaces the maps of the one before. The maps
    remain after the block; the hooks are removed.

    Examples:
        >>> import torch
        >>> from aanets_plugin.baselines import resnet20
        >>> with stage_maps(model := resnet20()) as maps:
        ...     logits = model(torch.randn(8, 3, 32, 32))
        >>> [tuple(m.shape) for m in maps]
        [(8, 16, 32, 32), (8, 32, 16, 16), (8, 64, 8, 8)]
    """
    stages: list[nn.Module] = [*levels(model)]
    if not stages:
        stages = [model.get_submodule(name) for name in find_stages(model)]
    if not stages:
        raise UnsupportedModelError(
            f"{type(model).__name__} has neither adaptive levels nor residual stages: must be a "
            f"converted model or a ResNet."
        )
    maps: list[Tensor] = []
    handles = []
    try:
        for index, stage in enumerate(stages):
            handles.append(stage.register_forward_hook(_MapHook(stage, index, maps)))
        yield maps
    finally:
        for handle in handles:
            handle.remove()


class _MapHook:
    """Forward hook of one stage. A copy of the stage has a copy of the hook, which does nothing."""

    def __init__(self, stage: nn.Module | None, index: int, maps: list[Tensor]) -> None:
        self.stage = stage
        self.index = index
        self.maps = maps

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is not self.stage:
            return
        feature_map = _last_tensor(output)
        if feature_map is None:
            raise UnsupportedModelError(
                f"stage {self.index} returns a {type(output).__name__} without a tensor: must "
                f"return a map [batch, channels, height, width]."
            )
        del self.maps[self.index :]
        # A copy, because the next stage may modify its input in place.
        self.maps.append(feature_map.clone())

    def __reduce__(self) -> tuple[Any, ...]:
        return _MapHook, (None, self.index, [])


def _last_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        output = list(output.values())
    if not isinstance(output, (tuple, list)):
        return None
    tensors = (_last_tensor(item) for item in reversed(output))
    return next((tensor for tensor in tensors if tensor is not None), None)
