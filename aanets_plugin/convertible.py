"""The checks before a conversion. They change nothing."""

import difflib
from collections.abc import Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aanets_plugin.errors import AlreadyConvertedError, ConfigurationError, UnsupportedModelError
from aanets_plugin.levels import levels
from aanets_plugin.scaling import KERNEL_LAYERS
from aanets_plugin.stages import find_stages, is_container


def check_model(model: nn.Module, stages: Sequence[str] | None) -> list[str]:
    """Return the names of the stages to convert. Changes nothing."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={model!r:.80}: must be a torch.nn.Module.")
    if converted := levels(model):
        raise AlreadyConvertedError(
            f"{type(model).__name__} is converted already: its levels are "
            f"{', '.join(level.name for level in converted)}. To make the current weights the new "
            f"θ_base, call freeze_base(model). For other blocks, convert a plain network."
        )
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise UnsupportedModelError(
            "The model is in DistributedDataParallel, which has registered its parameters. Convert "
            "the model first, then wrap it."
        )
    residual = find_stages(model)
    if stages is None:
        if not residual:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no residual stage: no module has convolutions and "
                f"adds in its forward. Its children are "
                f"{_quoted([name for name, _ in model.named_children()])}. Name the stages in "
                f"forward order: stages=[…], on the command line --stages."
            )
        return residual
    return _check_stages(model, stages, residual)


def _check_stages(model: nn.Module, stages: Sequence[str], residual: list[str]) -> list[str]:
    stages = list(stages)
    known = {name: module for name, module in model.named_modules() if name}
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
            if other.startswith(f"{stage}."):
                raise ConfigurationError(
                    f"stages={stages!r}: {other!r} is inside {stage!r}. Name one of them.{hint}"
                )
    order = [name for name in known if name in stages]
    if order != stages:
        raise ConfigurationError(f"stages={stages!r}: must be in forward order. Pass {order}.")
    return stages


def check_parts(model: nn.Module, names: list[str]) -> None:
    """Check that the kernels in the modules that get a φ are plain, initialized parameters."""
    for name in names:
        for inner, module in model.get_submodule(name).named_modules(prefix=name):
            if isinstance(module, KERNEL_LAYERS):
                weight = module._parameters.get("weight")
                if weight is None or nn.parameter.is_lazy(weight):
                    raise UnsupportedModelError(
                        f"{inner} ({type(module).__name__}) has no plain weight to scale. Remove "
                        f"weight_norm, spectral_norm and parametrizations, run lazy modules once, "
                        f"or pass blocks without 'scaling'."
                    )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no children"
