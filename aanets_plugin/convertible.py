"""The checks before a conversion. They change nothing."""

import difflib
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aanets_plugin.checks import check_module, require_whole, shorten
from aanets_plugin.errors import AlreadyConvertedError, ConfigurationError, UnsupportedModelError
from aanets_plugin.levels import levels
from aanets_plugin.scaling import KERNEL_LAYERS, SCALING_NAMES
from aanets_plugin.stages import find_blocks, find_stages, is_container

_COMPILED = "is compiled by torch.jit. Convert the model first, then compile it"


def check_model(model: nn.Module, stages: Sequence[str] | None) -> list[str]:
    """Return the names of the stages to convert. Changes nothing."""
    check_module(model)
    if converted := levels(model):
        raise AlreadyConvertedError(
            f"{type(model).__name__} is converted already: its levels are "
            f"{', '.join(level.name for level in converted)}. To make the current weights the new "
            f"θ_base, call freeze_base(model). For other blocks, convert a plain network."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModelError(f"{type(model).__name__} {_COMPILED}.")
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise UnsupportedModelError(
            "The model is in DistributedDataParallel, which has registered its parameters. Convert "
            "the model first, then wrap it."
        )
    require_whole(model, "convert_to_aanet")
    residual = find_stages(model)
    if stages is None:
        if not residual:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no residual stage: no module has convolutions and "
                f"adds in its forward. Its children are "
                f"{_quoted([name for name, _ in model.named_children()])}. Name the stages in "
                f"forward order: stages=[…], on the command line --stages."
            )
        inside = tuple(f"{stage}." for stage in residual)
        if left := [block for block in find_blocks(model) if not f"{block}.".startswith(inside)]:
            warnings.warn(
                f"The stages of {type(model).__name__} are {_quoted(residual)}. These residual "
                f"blocks are outside of them and get no level: {shorten(left)}. To choose others, "
                f"pass stages=[…].",
                stacklevel=3,
            )
        return residual
    return _check_stages(model, stages, residual)


def _check_stages(model: nn.Module, stages: Sequence[str], residual: list[str]) -> list[str]:
    stages = list(stages)
    modules = model.named_modules(remove_duplicate=False)
    known = {name: module for name, module in modules if name}
    hint = f" find_stages(model) gives {_quoted(residual)}." if residual else ""
    for stage in stages:
        if stage not in known:
            close = difflib.get_close_matches(str(stage), known, n=3)
            near = f" Did you mean {_quoted(close)}?" if close else ""
            raise ConfigurationError(
                f"stages={stages!r}: {type(model).__name__} has no module {stage!r}.{near}{hint}"
            )
        if is_container(known[stage]):
            raise ConfigurationError(
                f"stages={stages!r}: {stage!r} is a {type(known[stage]).__name__}, which has no "
                f"forward. Name the modules in it.{hint}"
            )
        if not any(True for _ in known[stage].parameters()):
            raise ConfigurationError(
                f"stages={stages!r}: {stage!r} is a {type(known[stage]).__name__} without weights. "
                f"Leave it out.{hint}"
            )
        if stages.count(stage) > 1:
            raise ConfigurationError(
                f"stages={stages!r}: {stage!r} is repeated. Name it once.{hint}"
            )
        for other in stages:
            if other != stage and known.get(other) is known[stage]:
                raise ConfigurationError(
                    f"stages={stages!r}: {stage!r} and {other!r} are the same module. Name one of "
                    f"them: both places get the level.{hint}"
                )
            if other.startswith(f"{stage}."):
                raise ConfigurationError(
                    f"stages={stages!r}: {other!r} is inside {stage!r}. Name one of them.{hint}"
                )
    order = [name for name in known if name in stages]
    if order != stages:
        raise ConfigurationError(f"stages={stages!r}: must be in forward order. Pass {order}.")
    return stages


def check_parts(model: nn.Module, parts: Mapping[str, Sequence[str]]) -> None:
    """Check the modules that become branches or learn differently.

    `parts` are their names, with the block types of the branches.
    """
    owners: dict[nn.Parameter, str] = {}
    for name, blocks in parts.items():
        part = model.get_submodule(name)
        for inner, module in part.named_modules(prefix=name):
            if problem := _problem(module, blocks):
                raise UnsupportedModelError(f"{inner} ({type(module).__name__}) {problem}.")
        for parameter in part.parameters():
            if owners.setdefault(parameter, name) != name:
                raise UnsupportedModelError(
                    f"{owners[parameter]} and {name} share weights, which could not be frozen in "
                    f"one and learn in the other. Make them separate, or name one of them in "
                    f"`stages`."
                )
        if name in owners.values() and not any(p.is_floating_point() for p in part.parameters()):
            raise UnsupportedModelError(
                f"{name} has no weights of real floating point numbers, which are the ones that "
                f"can be scaled and summed. Convert it with .float(), or leave it out of `stages`."
            )


def _problem(module: nn.Module, blocks: Sequence[str]) -> str | None:
    """Return why a module cannot be in a branch; None if it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return _COMPILED
    own = list(module.parameters(recurse=False))
    if any(map(nn.parameter.is_lazy, own)):
        return "is lazy and has no weights yet. Run the model once before the conversion"
    if any(p.is_complex() for p in own):
        return "has complex weights. Only real ones can be aggregated: leave it out of `stages`"
    if any(p.is_inference() for p in own):
        return (
            "has weights that were made in inference mode, which cannot learn. Make the model "
            "outside of torch.inference_mode()"
        )
    if "scaling" in blocks and isinstance(module, KERNEL_LAYERS):
        if module._parameters.get("weight") is None:
            return (
                "has no plain weight to scale. Remove weight_norm, spectral_norm, pruning and "
                "parametrizations, or pass blocks without 'scaling'"
            )
        if taken := next((name for name in SCALING_NAMES if hasattr(module, name)), None):
            return (
                f"has an attribute {taken!r}, the name of its scaling weights. Rename it, or pass "
                f"blocks without 'scaling'"
            )
    return None


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no children"
