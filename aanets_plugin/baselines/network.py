"""A network for the baselines: a backbone that gives features, and a head that grows."""

from __future__ import annotations

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


def without_head(model: nn.Module) -> nn.Module:
    """Put an identity in place of the last linear or cosine layer of `model`, in place.

    A model that has none, or whose last one is not called in `forward`, gives its features already
    (timm's `num_classes=0`, for instance) and is left as it is.
    """
    heads = [name for name, module in model.named_modules() if isinstance(module, _HEADS)]
    # A split head holds two cosine layers: what is to go is the outermost of them.
    heads = [name for name in heads if not any(name.startswith(f"{other}.") for other in heads)]
    if not heads:
        return model
    if not heads[-1]:
        raise UnsupportedModelError(
            f"the model is a {type(model).__name__} and nothing else; expected a network with a "
            f"backbone before its classifier"
        )
    parent, _, name = heads[-1].rpartition(".")
    setattr(model.get_submodule(parent), name, nn.Identity())
    return model


def feature_count(backbone: nn.Module, input_shape: tuple[int, ...]) -> int:
    """How many features `backbone` gives for an input of this shape, by a look at one on zeros."""
    like = next(backbone.parameters())
    with torch.no_grad(), evaluating(backbone):
        found = backbone(torch.zeros(1, *input_shape, device=like.device, dtype=like.dtype))
    if not isinstance(found, Tensor):
        raise UnsupportedModelError(
            f"{type(backbone).__name__} gives a {type(found).__name__}; expected the features of a "
            f"batch as a tensor. Wrap it in a module that returns them."
        )
    return found.flatten(1).shape[1]
