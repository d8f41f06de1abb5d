"""convert_to_aanet, and the two states of a converted model: base phase and frozen base.

The conversion checks everything and builds all new modules before it changes the model.
"""

import difflib
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aanets_plugin.config import DEFAULTS, AANetConfig
from aanets_plugin.errors import AlreadyConvertedError, ConfigurationError, UnsupportedModelError
from aanets_plugin.levels import AdaptiveLevel, Branches, PairedStem, levels
from aanets_plugin.scaling import KERNEL_LAYERS, RULES, release
from aanets_plugin.stages import common_parent, find_stages, find_stem, is_container

Model = TypeVar("Model", bound=nn.Module)

STEM_RULE = "_aanet_stem_rule"
"""Attribute of a shared stem module: how the module learns once θ_base is frozen."""


def convert_to_aanet(
    model: Model,
    *,
    blocks: Sequence[str] = DEFAULTS.blocks,
    stem: str = DEFAULTS.stem,
    stages: Sequence[str] | None = DEFAULTS.stages,
    alpha: Sequence[float] | None = DEFAULTS.alpha,
) -> Model:
    """Turn every residual stage of `model` into an adaptive level, in place; returns `model`.

    The current weights become θ_base. The outputs of the model stay the same, and so do its class
    and its forward.

    Args:
        model: A ResNet of torchvision, timm or your own code, not yet in DistributedDataParallel.
        blocks: One entry per branch, from the plastic to the stable one. "all" learns everything,
            "scaling" learns one scale per kernel slice and the normalization layers, "frozen"
            learns nothing.
        stem: How the layers before the first stage learn. "stable": shared, they learn as the
            stable branch does. "plastic": shared, everything learns. "paired": one stem per
            branch, and the first aggregation is after the first stage, as in the authors' code.
        stages: Dotted names of the stages in forward order. Default: found by `find_stages`.
        alpha: Initial aggregation weights, one per branch, that sum to one. Default: equal weights.

    Example:
        >>> from torchvision.models import resnet18
        >>> model = convert_to_aanet(resnet18())
        >>> [level.name for level in levels(model)]
        ['layer1', 'layer2', 'layer3', 'layer4']
    """
    config = AANetConfig(blocks=blocks, stem=stem, stages=stages, alpha=alpha)
    blocks = tuple(config.blocks)
    names = _check_model(model, config.stages)
    stem_names = find_stem(model, names[0])
    if "scaling" in blocks:
        _check_kernels(model, names if stem == "plastic" else [*names, *stem_names])

    paired = stem == "paired" and bool(stem_names)
    parts: dict[str, Branches] = {
        name: AdaptiveLevel(
            name,
            model.get_submodule(name),
            blocks,
            config.initial_alpha,
            after_paired_stem=paired and name == names[0],
        )
        for name in names
    }
    if paired:
        for name in stem_names:
            part = model.get_submodule(name)
            parts[name] = PairedStem(name, part, blocks, first=name == stem_names[0])
    copies = {name: part.copies() for name, part in parts.items()}  # the last step that can fail

    for name, part in parts.items():
        part.freeze_base(copies[name])
        model.set_submodule(name, part)
    if not paired:
        for name in stem_names:
            module, rule = model.get_submodule(name), blocks[-1] if stem == "stable" else "all"
            setattr(module, STEM_RULE, rule)
            RULES[rule](module)
    trunk = model.get_submodule(common_parent([*stem_names, *names]))
    trunk.register_load_state_dict_pre_hook(_follow_checkpoint)  # type: ignore[no-untyped-call]
    return model


def freeze_base(model: nn.Module) -> None:
    """Make the current weights θ_base: build new stable branches with φ = 1 and the initial α.

    The plastic branches keep their parameter objects. All other parameters are new, so build the
    optimizer after this call.
    """
    require_converted(model, "freeze_base")
    thaw_base(model)
    for module in list(model.modules()):
        if isinstance(module, Branches):
            module.freeze_base()
        elif rule := module.__dict__.get(STEM_RULE):
            RULES[rule](module)


def thaw_base(model: nn.Module) -> None:
    """Return to the base phase: each level has its plastic branch only, and all of it learns.

    The stable branches are deleted. Build the optimizer after this call.
    """
    require_converted(model, "thaw_base")
    for module in list(model.modules()):
        if isinstance(module, Branches):
            module.thaw_base()
        elif STEM_RULE in module.__dict__:
            release(module, training=model.training)


def forget_conversion(model: nn.Module) -> None:
    """Remove what `convert_to_aanet` left on modules that are not adaptive levels."""
    for module in model.modules():
        module.__dict__.pop(STEM_RULE, None)
        hooks = module._load_state_dict_pre_hooks
        for key, hook in list(hooks.items()):
            if getattr(hook, "hook", None) is _follow_checkpoint:
                del hooks[key]


def _follow_checkpoint(trunk: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before a state_dict is loaded, put the model in the state in which it was saved."""
    first = next(
        name for name, module in trunk.named_modules() if isinstance(module, AdaptiveLevel)
    )
    level = f"{prefix}{first}"
    if not any(key.startswith(f"{level}.branches.") for key in state_dict):
        if plain := next((key for key in state_dict if key.startswith(f"{level}.")), None):
            raise ConfigurationError(
                f"The state_dict is of a network that was not converted: it has {plain!r} and no "
                f"'{level}.branches.…'. Load it with load_plain_state_dict(model, state), or "
                f"before convert_to_aanet(model). to_plain(model) gives a plain network back."
            )
        return
    plastic = f"{level}.branches.0."
    buffers = [f"{plastic}{name}" for name, _ in levels(trunk)[0].plastic.named_buffers()]
    if buffers and not any(key in state_dict for key in buffers):
        return  # parameters without buffers: they do not show the state
    frozen = f"{level}.alpha" in state_dict
    if frozen != levels(trunk)[0].base_frozen:
        (freeze_base if frozen else thaw_base)(trunk)


def require_converted(model: nn.Module, what: str) -> None:
    if not levels(model):
        raise UnsupportedModelError(
            f"{what}: {type(model).__name__} has no adaptive levels. Call convert_to_aanet(model) "
            f"first."
        )
