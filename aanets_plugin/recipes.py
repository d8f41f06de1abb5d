"""How a plain network is made: a function and its arguments, as JSON.

    {"factory": "torchvision.models.resnet18", "arguments": {"num_classes": 50}}

An argument may be a recipe itself. Only the functions named here are called, without arguments that
would read or download weights, so that a file from elsewhere cannot run code.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.random_state import random_state_kept

Recipe = dict[str, Any]

_OURS = "aanets_plugin.baselines."
_OPEN = "aanets_plugin.experiments.backbones.resnet18_open"
_HEADLESS = "aanets_plugin.baselines.network.without_head"
FACTORIES = (
    *(f"{_OURS}{name}" for name in ("CifarResNet", "IncrementalNet", "CosineLinear")),
    *(f"{_OURS}{name}" for name in ("SplitCosineLinear", "LocalSimilarityClassifier")),
    _OPEN,
    _HEADLESS,
    "timm.create_model",
    "torch.nn.Linear",
)
"""What a recipe may call, beside the models of torchvision by name."""


def build(recipe: Recipe) -> nn.Module:
    """Make the network of a recipe. The global random numbers do not change."""
    factory, arguments = str(recipe.get("factory")), dict(recipe.get("arguments", {}))
    module, _, name = factory.rpartition(".")
    try:
        allowed = factory in FACTORIES or (
            module == "torchvision.models" and name in _torchvision_names()
        )
        function = getattr(import_module(module), name) if allowed else None
    except ImportError as error:
        raise ConfigurationError(
            f"{factory} cannot be imported ({error}). Install the package, or pass plain_model."
        ) from error
    if function is None:
        raise ConfigurationError(
            f"factory={factory!r}: is not a network of torchvision, timm or this package. Pass "
            f"plain_model."
        )
    reads = ("weights", "pretrained", "checkpoint")
    if bad := [key for key in arguments if key.startswith(reads)]:
        raise ConfigurationError(
            f"{factory}: {bad[0]}={arguments[bad[0]]!r} would read weights. Leave it out."
        )
    if ":" in str(arguments.get("model_name", "")):
        raise ConfigurationError(
            f"{factory}: model_name={arguments['model_name']!r} would read files. Name a model of "
            f"timm."
        )
    built = {k: build(v) if isinstance(v, dict) else v for k, v in arguments.items()}
    with random_state_kept():
        return function(**built)  # type: ignore[no-any-return]


def describe(plain: nn.Module) -> Recipe | None:
    """Return a recipe that makes a network like `plain`, of the same classes, layers and shapes.

    None if it is not a network of torchvision, timm or this package as one call makes it.
    """
    wanted = structure(plain)
    for recipe in _candidates(plain):
        try:
            with torch.device("meta"):
                made = build(recipe)
                if structure(made) == wanted:
                    return recipe
                if structure(build(_headless(made))) == wanted:
                    return _headless(recipe)
        except Exception:  # another version of a library, or one that is not installed
            continue
    return None


def _headless(model: Recipe | nn.Module) -> Recipe:
    return {
        "factory": "aanets_plugin.baselines.network.without_head",
        "arguments": {"model": model},
    }


def structure(model: nn.Module) -> dict[str, Any]:
    """The outline of a network and the class of every module."""
    return outline(model) | {f"{name}:": type(m) for name, m in model.named_modules()}


def outline(model: nn.Module) -> dict[str, Any]:
    """The layout of every layer and the shape of every tensor by name, as JSON."""
    layouts = {name: text for name, m in model.named_modules() if (text := layout(m))}
    return layouts | {key: list(value.shape) for key, value in model.state_dict().items()}


def layout(module: nn.Module) -> str:
    """What a layer does that the shapes of its weights do not show, such as stride and padding."""
    names = ("kernel_size", "stride", "padding", "dilation", "groups", "num_groups", "eps")
    shown = [f"{name}={getattr(module, name)}" for name in names if hasattr(module, name)]
    weightless = not any(True for _ in (*module.children(), *module.state_dict()))
    return ", ".join([type(module).__name__, *shown] if weightless else shown)


def _candidates(plain: Any) -> Iterator[Recipe]:
    kind = type(plain)
    linear = [module for module in plain.modules() if isinstance(module, nn.Linear)]
    sizes = {"num_classes": linear[-1].out_features} if linear else {}
    if kind is nn.Linear:
        bias = plain.bias is not None
        arguments = {"in_features": plain.in_features, "out_features": plain.out_features}
        yield {"factory": "torch.nn.Linear", "arguments": {**arguments, "bias": bias}}
    elif kind.__module__.startswith(_OURS) and hasattr(plain, "constructor_arguments"):
        given = plain.constructor_arguments()
        parts = {k: describe(v) if isinstance(v, nn.Module) else v for k, v in given.items()}
        if not any(part is None for part in parts.values()):
            yield {"factory": f"{_OURS}{kind.__name__}", "arguments": parts}
    elif kind.__module__.startswith("torchvision.models."):
        for name in sorted(_torchvision_names(kind.__module__), key=len):  # small ones first
            yield {"factory": f"torchvision.models.{name}", "arguments": sizes}
        yield {"factory": _OPEN, "arguments": {}}
    elif kind.__module__.startswith("timm."):
        config = getattr(plain, "pretrained_cfg", None) or {}
        first = next((m for m in plain.modules() if isinstance(m, nn.Conv2d)), None)
        inputs = {} if first is None or first.in_channels == 3 else {"in_chans": first.in_channels}
        known = {"model_name": config.get("architecture"), "num_classes": plain.num_classes}
        yield {"factory": "timm.create_model", "arguments": {**known, **inputs}}


def _torchvision_names(module: str | None = None) -> list[str]:
    """The classification models of torchvision; those of one of its files, if it is named."""
    models = import_module("torchvision.models")

    names = models.list_models(module=models)
    if module is None:
        return names  # type: ignore[no-any-return]
    return [name for name in names if models.get_model_builder(name).__module__ == module]
