"""The network of the methods: a backbone that computes features, and a head that grows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.heads import CosineScores, SplitCosineLinear
from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.modes import evaluating

_HEADS = (nn.Linear, CosineScores, SplitCosineLinear)


class IncrementalNet(nn.Module):
    """`fc(backbone(x))`. New classes replace `fc`; `convert_to_aanet` is applied to `backbone`.

    State: the state of the backbone with the prefix `backbone.`, that of the head with `fc.`.
    """

    def __init__(self, backbone: nn.Module, fc: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = fc

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments that make such a network."""
        return {"backbone": self.backbone, "fc": self.fc}

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the head, [batch, dimensions]."""
        return self.backbone(x).flatten(1)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, [batch, classes]."""
        return self.fc(self.features(x))  # type: ignore[no-any-return]


def without_head(model: nn.Module, input_shape: tuple[int, ...] | None = None) -> nn.Module:
    """Replace the classifier of `model` by an identity, in place.

    The classifier is the last linear or cosine layer. With `input_shape`, the model runs once on
    zeros, and the classifier is the layer whose output is the model's output. A model without such
    a layer returns features already (timm's `num_classes=0`, for example) and does not change.
    """
    heads: dict[str, nn.Module] = {
        name: module for name, module in model.named_modules() if isinstance(module, _HEADS)
    }
    # A split head contains two cosine layers: keep the outermost module only.
    heads = {n: m for n, m in heads.items() if not any(n.startswith(f"{o}.") for o in heads)}
    if input_shape is not None:
        heads = _output_heads(model, heads, input_shape)
    if not heads:
        return model
    *_, last = heads
    if not last:
        raise UnsupportedModelError(
            f"the model is a {type(model).__name__} and nothing else: must be a network with a "
            f"backbone before its classifier."
        )
    parent, _, name = last.rpartition(".")
    setattr(model.get_submodule(parent), name, nn.Identity())
    return model


def _output_heads(
    model: nn.Module, heads: dict[str, nn.Module], input_shape: tuple[int, ...]
) -> dict[str, nn.Module]:
    """Return the heads whose output is the output of the model."""
    outputs: dict[str, Tensor] = {}

    def record(name: str) -> Callable[..., None]:
        return lambda _, __, out: outputs.update({name: out})

    handles = [head.register_forward_hook(record(name)) for name, head in heads.items()]
    try:
        output = _on_zeros(model, input_shape)
    finally:
        for handle in handles:
            handle.remove()
    return {name: head for name, head in heads.items() if outputs.get(name) is output}


def _on_zeros(model: nn.Module, input_shape: tuple[int, ...]) -> Any:
    like = next(model.parameters())
    with torch.no_grad(), evaluating(model):
        return model(torch.zeros(1, *input_shape, device=like.device, dtype=like.dtype))


def feature_count(backbone: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return the number of features of `backbone` for an input of this shape."""
    features = _on_zeros(backbone, input_shape)
    if not isinstance(features, Tensor):
        raise UnsupportedModelError(
            f"{type(backbone).__name__} returns a {type(features).__name__}: must return the "
            f"features of a batch as a tensor. Wrap it in a module that does."
        )
    return features.flatten(1).shape[1]
