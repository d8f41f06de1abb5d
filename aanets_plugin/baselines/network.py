"""A network for the baselines: a backbone that gives features, and a head that grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.heads import CosineScores, SplitCosineLinear
from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.modes import evaluating

_HEADS = (nn.Linear, CosineScores, SplitCosineLinear)


class IncrementalNet(nn.Module):
    """`fc(backbone(x))`. `fc` is replaced when classes arrive; only the backbone is converted.

    State: ``backbone.…`` as the backbone names it, ``fc.…`` as the head does.
    """

    def __init__(self, backbone: nn.Module, fc: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = fc

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: [batch, dimensions]."""
        return self.backbone(x).flatten(1)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))  # type: ignore[no-any-return]


def without_head(model: nn.Module, input_shape: tuple[int, ...] | None = None) -> nn.Module:
    """Put an identity in place of the classifier of `model`, in place.

    The classifier is the last linear or cosine layer. With `input_shape`, `model` is run once on
    zeros, and it is the layer whose output is the model's; a model that has none gives its features
    already (timm's `num_classes=0`, for instance) and is left as it is.
    """
    heads: dict[str, nn.Module] = {
        name: module for name, module in model.named_modules() if isinstance(module, _HEADS)
    }
    # A split head holds two cosine layers: what is to go is the outermost of them.
    heads = {n: m for n, m in heads.items() if not any(n.startswith(f"{o}.") for o in heads)}
    if input_shape is not None:
        heads = _that_end(model, heads, input_shape)
    if not heads:
        return model
    *_, last = heads
    if not last:
        raise UnsupportedModelError(
            f"the model is a {type(model).__name__} and nothing else; expected a network with a "
            f"backbone before its classifier"
        )
    parent, _, name = last.rpartition(".")
    setattr(model.get_submodule(parent), name, nn.Identity())
    return model


def _that_end(
    model: nn.Module, heads: dict[str, nn.Module], input_shape: tuple[int, ...]
) -> dict[str, nn.Module]:
    """Those of `heads` whose output is the output of the model."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda _, __, out: outputs.update({name: out})

    handles = [head.register_forward_hook(keep(name)) for name, head in heads.items()]
    try:
        end = _on_zeros(model, input_shape)
    finally:
        for handle in handles:
            handle.remove()
    return {name: head for name, head in heads.items() if outputs.get(name) is end}


def _on_zeros(model: nn.Module, input_shape: tuple[int, ...]) -> Any:
    like = next(model.parameters())
    with torch.no_grad(), evaluating(model):
        return model(torch.zeros(1, *input_shape, device=like.device, dtype=like.dtype))


def feature_count(backbone: nn.Module, input_shape: tuple[int, ...]) -> int:
    """How many features `backbone` gives for an input of this shape, by a look at one on zeros."""
    found = _on_zeros(backbone, input_shape)
    if not isinstance(found, Tensor):
        raise UnsupportedModelError(
            f"{type(backbone).__name__} gives a {type(found).__name__}; expected the features of a "
            f"batch as a tensor. Wrap it in a module that returns them."
        )
    return found.flatten(1).shape[1]
