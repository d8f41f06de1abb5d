"""convert_to_aanet, and the two states of a converted model: base phase and frozen base.

A change of state is made as a whole or not at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import nn

from aanets_plugin.checks import check_module, require_whole
from aanets_plugin.config import DEFAULTS, AANetConfig
from aanets_plugin.convertible import check_model, check_parts
from aanets_plugin.errors import ConfigurationError, UnsupportedModelError
from aanets_plugin.levels import AdaptiveLevel, Branches, PairedStem, levels, move_hooks
from aanets_plugin.paired import check_paired_stem
from aanets_plugin.scaling import RULES, release
from aanets_plugin.stages import common_parent, find_stem
from aanets_plugin.undo import undone_on_error

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
    and its forward. The defaults are those of `AANetConfig`.

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

    Examples:
        >>> from torchvision.models import resnet18
        >>> model = convert_to_aanet(resnet18())
        >>> [level.name for level in levels(model)]
        ['layer1', 'layer2', 'layer3', 'layer4']
    """
    config = AANetConfig(blocks=blocks, stem=stem, stages=stages, alpha=alpha)
    blocks = tuple(config.blocks)
    names = check_model(model, config.stages)
    stem_names = find_stem(model, names[0])
    stem_blocks = {"stable": blocks[-1:], "plastic": ("all",), "paired": blocks}[stem]
    check_parts(model, {**dict.fromkeys(stem_names, stem_blocks), **dict.fromkeys(names, blocks)})
    if stem == "paired" and stem_names:
        check_paired_stem(model, stem_names, names[0])
    with undone_on_error(model, "converted"):
        paired = stem_names if stem == "paired" else []
        parts: list[Branches] = [
            PairedStem(name, model.get_submodule(name), blocks, first=name == paired[0])
            for name in paired
        ]
        parts += [
            AdaptiveLevel(
                name,
                model.get_submodule(name),
                blocks,
                config.initial_alpha,
                after_paired_stem=bool(paired) and name == names[0],
            )
            for name in names
        ]
        replace_modules(model, {part.plastic: part for part in parts})
        for part in parts:
            move_hooks(part.plastic, part)
            part.freeze_base()
        for level in levels(model):
            level.from_conversion = True
        if not paired:
            for name in stem_names:
                module = model.get_submodule(name)
                setattr(module, STEM_RULE, stem_blocks[0])
                RULES[stem_blocks[0]](module)
        trunk = model.get_submodule(common_parent([*stem_names, *names]))
        trunk.register_load_state_dict_pre_hook(_follow_checkpoint)  # type: ignore[no-untyped-call]
    return model


def replace_modules(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """Put new modules in all places where `model` has the old ones, also in lists and dicts."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in new:
            model.set_submodule(name, new[module])
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, nn.Module):
                vars(module)[name] = new.get(value, value)
            elif isinstance(value, tuple) and any(_is_in(new, item) for item in value):
                vars(module)[name] = tuple(new.get(item, item) for item in value)
            elif isinstance(value, (list, dict)) and name not in ("_modules", "_parameters"):
                for key, item in enumerate(value) if isinstance(value, list) else value.items():
                    if _is_in(new, item):
                        value[key] = new[item]


def _is_in(modules: Mapping[nn.Module, nn.Module], item: Any) -> bool:
    return isinstance(item, nn.Module) and item in modules


def freeze_base(model: nn.Module) -> None:
    """Make the current weights θ_base: build new stable branches with φ = 1 and the initial α.

    The plastic branches keep their parameter objects. All other parameters are new, so build the
    optimizer after this call.
    """
    require_converted(model, "freeze_base")
    require_whole(model, "freeze_base")
    with undone_on_error(model, "frozen as a base"):
        thaw_base(model)
        for module in list(model.modules()):
            if isinstance(module, Branches):
                module.freeze_base()
            elif rule := module.__dict__.get(STEM_RULE):
                RULES[rule](module)


def thaw_base(model: nn.Module) -> None:
    """Return to the base phase: each level has its plastic branch only, and all of it learns.

    The stable branches are deleted. Parameters of the base phase that an optimizer still has come
    back as the same objects, so an optimizer from before the conversion trains this phase. In all
    other cases build the optimizer after this call.
    """
    require_converted(model, "thaw_base")
    require_whole(model, "thaw_base")
    with undone_on_error(model, "brought back to the base phase"):
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
    for loaded in levels(trunk):
        loaded.from_conversion = False


def require_converted(model: nn.Module, what: str) -> None:
    """Check that a model has adaptive levels."""
    check_module(model)
    if not levels(model):
        raise UnsupportedModelError(
            f"{what}: {type(model).__name__} has no adaptive levels. Call convert_to_aanet(model) "
            f"first."
        )
