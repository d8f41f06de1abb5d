"""convert_to_aanet: check everything, plan, then swap; and the two states of a converted model."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aanets_plugin.config import DEFAULTS, AANetConfig
from aanets_plugin.errors import AlreadyConvertedError, ConfigurationError, UnsupportedModelError
from aanets_plugin.levels import AdaptiveLevel, Branches, PairedStem, levels
from aanets_plugin.scaling import KERNEL_LAYERS, RULES, release
from aanets_plugin.stages import common_parent, find_stages, find_stem

Model = TypeVar("Model", bound=nn.Module)

STEM_RULE = "_aanet_stem_rule"
"""The attribute of a shared stem module that tells how it learns once θ_base is frozen."""


def convert_to_aanet(
    model: Model,
    *,
    blocks: Sequence[str] = DEFAULTS.blocks,
    stem: str = DEFAULTS.stem,
    stages: Sequence[str] | None = DEFAULTS.stages,
    alpha: Sequence[float] | None = DEFAULTS.alpha,
) -> Model:
    """Turn every residual stage of `model` into an adaptive level, in place; returns `model`.

    The network as it is now becomes θ_base. Its outputs stay the same, and so do its class, its
    forward and the names of its modules.

    Args:
        model: a ResNet of torchvision, timm or your own code, before DistributedDataParallel.
        blocks: one entry per branch, the plastic one first, the stable one last. "all" learns
            everything, "scaling" learns one scale per kernel slice and the normalisation layers,
            "frozen" learns nothing.
        stem: what comes before the first stage. "stable": shared, learns as the stable branch
            does; "plastic": shared, all of it learns; "paired": one per branch, the first
            aggregation comes after the first stage, as in the authors' code.
        stages: dotted names in forward order, where they are not found by themselves.
        alpha: initial aggregation weights, one per branch, that sum to one. Default: equal.

    Example:
        >>> from torchvision.models import resnet18
        >>> net = convert_to_aanet(resnet18())
        >>> [level.name for level in levels(net)]
        ['layer1', 'layer2', 'layer3', 'layer4']
    """
    config = AANetConfig(blocks=blocks, stem=stem, stages=stages, alpha=alpha)
    blocks = tuple(config.blocks)
    names = _check_model(model, config.stages)
    stem_names = find_stem(model, names[0])
    _check_kernels(model, names, stem_names, blocks, stem)

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
            parts[name] = PairedStem(model.get_submodule(name), blocks, first=name == stem_names[0])
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
    """θ_base is what `model` is now: build the stable branches anew, with φ = 1 and α initial.

    The plastic branches keep their parameter objects; the other parameters are new, so build the
    optimizer after this call.
    """
    _require_converted(model, "freeze_base")
    thaw_base(model)
    for module in list(model.modules()):
        if isinstance(module, Branches):
            module.freeze_base()
        elif rule := module.__dict__.get(STEM_RULE):
            RULES[rule](module)


def thaw_base(model: nn.Module) -> None:
    """Go back to training θ_base: one branch per level, all of it learning, at the plain
    network's cost. The stable branches are dropped; build the optimizer after this call."""
    _require_converted(model, "thaw_base")
    for module in list(model.modules()):
        if isinstance(module, Branches):
            module.thaw_base()
        elif STEM_RULE in module.__dict__:
            release(module, training=model.training)


def _follow_checkpoint(trunk: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before a checkpoint is loaded, go to the state it was saved in."""
    first = next(
        name for name, module in trunk.named_modules() if isinstance(module, AdaptiveLevel)
    )
    level = f"{prefix}{first}"
    if not any(key.startswith(f"{level}.branches.") for key in state_dict):
        return  # not a checkpoint of a converted model: load_state_dict says what is missing
    plastic = f"{level}.branches.0."
    buffers = [f"{plastic}{name}" for name, _ in levels(trunk)[0].plastic.named_buffers()]
    if buffers and not any(key in state_dict for key in buffers):
        return  # parameters alone, from a host that keeps those: they say nothing of the state
    frozen = f"{level}.alpha" in state_dict
    if frozen != levels(trunk)[0].base_frozen:
        (freeze_base if frozen else thaw_base)(trunk)


def _require_converted(model: nn.Module, what: str) -> None:
    if not levels(model):
        raise UnsupportedModelError(
            f"{what}: {type(model).__name__} has no adaptive levels. Call convert_to_aanet first."
        )


def _check_model(model: nn.Module, stages: Sequence[str] | None) -> list[str]:
    """The names of the stages to convert, or an error; touches nothing."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}: {model!r:.80}")
    if converted := levels(model):
        raise AlreadyConvertedError(
            f"{type(model).__name__} has adaptive levels already: "
            f"{', '.join(level.name for level in converted)}. To make the network as it is now the "
            f"new θ_base, call freeze_base(model); for other blocks, convert a plain network."
        )
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise UnsupportedModelError(
            "the model is in DistributedDataParallel, which has taken its parameters already. "
            "Convert first, then wrap."
        )
    found = find_stages(model)
    if stages is None:
        if not found:
            raise UnsupportedModelError(
                f"no residual stage found in {type(model).__name__}: none of its modules convolves "
                f"and adds. It has {_quoted([name for name, _ in model.named_children()])}. "
                f"Name the stages in forward order: convert_to_aanet(model, stages=[…])."
            )
        return found
    return _check_stages(model, stages, found)


def _check_stages(model: nn.Module, stages: Sequence[str], found: list[str]) -> list[str]:
    stages = list(stages)
    known = {name: module for name, module in model.named_modules() if name}
    hint = f" Stages found by themselves: {_quoted(found)}." if found else ""
    for stage in stages:
        if stage not in known:
            close = difflib.get_close_matches(str(stage), known, n=3)
            near = f" Did you mean {_quoted(close)}?" if close else ""
            raise ConfigurationError(
                f"stages={stages!r}: {type(model).__name__} has no module {stage!r}.{near}{hint}"
            )
        if not any(True for _ in known[stage].parameters()):
            raise ConfigurationError(
                f"stages={stages!r}: {stage!r} is a {type(known[stage]).__name__} without weights, "
                f"there is nothing to aggregate. Leave it out.{hint}"
            )
        if stages.count(stage) > 1:
            raise ConfigurationError(f"stages={stages!r}: {stage!r} is there twice.{hint}")
        for other in stages:
            if other.startswith(f"{stage}."):
                raise ConfigurationError(
                    f"stages={stages!r}: {other!r} is inside {stage!r}. Name one of them.{hint}"
                )
    order = [name for name in known if name in stages]
    if order != stages:
        raise ConfigurationError(
            f"stages={stages!r}: not in forward order, which is {order} by the order in which "
            f"{type(model).__name__} has them."
        )
    return stages


def _check_kernels(
    model: nn.Module,
    names: list[str],
    stem_names: list[str],
    blocks: tuple[str, ...],
    stem: str,
) -> None:
    """A scaling branch needs kernels that are plain, initialised parameters."""
    if "scaling" not in blocks:
        return
    for name in [*names, *(stem_names if stem != "plastic" else [])]:
        for inner, module in model.get_submodule(name).named_modules(prefix=name):
            if isinstance(module, KERNEL_LAYERS):
                weight = module._parameters.get("weight")
                if weight is None or nn.parameter.is_lazy(weight):
                    raise UnsupportedModelError(
                        f"{inner} ({type(module).__name__}) has no plain weight to scale. Remove "
                        f"weight_norm, spectral_norm or parametrizations, run lazy modules once, "
                        f"or use blocks without 'scaling'."
                    )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no children"
