"""From a plain network's weights to a converted model, and back."""

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from aanets_plugin.checks import require_whole, shorten
from aanets_plugin.convert import (
    forget_conversion,
    freeze_base,
    replace_modules,
    require_converted,
    thaw_base,
)
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.levels import Branches, levels, move_hooks
from aanets_plugin.scaling import Scaled, release

Model = TypeVar("Model", bound=nn.Module)


def load_plain_state_dict(
    model: nn.Module, state: Mapping[str, Tensor], *, strict: bool = True
) -> None:
    """Load the state_dict of the plain network into a converted model, in place.

    The weights become θ_base. A model in its base phase stays in it. If θ_base is frozen, all
    branches get the new weights, with φ = 1 and the initial α; build the optimizer after this call.
    To keep θ_base as it is, make `BilevelStrategy(model, base_phase=False)`; otherwise its first
    phase trains all weights further.

    Args:
        model: A converted model, or its converted backbone.
        state: The state_dict of the same network before `convert_to_aanet`.
        strict: False: keys that only the model or only `state` has are ignored.

    Examples:
        >>> from aanets_plugin import convert_to_aanet
        >>> from aanets_plugin.baselines import resnet20
        >>> model = convert_to_aanet(resnet20())
        >>> load_plain_state_dict(model, resnet20().state_dict())
    """
    require_converted(model, "load_plain_state_dict")
    require_whole(model, "load_plain_state_dict")
    names = plain_names(model)
    own = model.state_dict()
    if any(names.get(key, key) != key for key in state):
        raise ConfigurationError(
            "The state_dict is of a converted network. Load it with model.load_state_dict(state)."
        )
    expected = {plain: list(own[key].shape) for key, plain in names.items()}
    given = {key: list(value.shape) for key, value in state.items()}
    if differences := state_differences(expected, given, strict=strict):
        raise ConfigurationError(
            f"The state_dict does not fit into {type(model).__name__} before its conversion: "
            f"{differences}. Pass the state of the same network. Without the keys that differ and "
            f"with strict=False, the others are loaded."
        )
    frozen = levels(model)[0].base_frozen
    thaw_base(model)
    model.load_state_dict(
        {key: state[plain] for key, plain in plain_names(model).items() if plain in state},
        strict=False,
    )
    if frozen:
        freeze_base(model)
        for level in levels(model):
            level.from_conversion = True


def to_plain(model: Model, branch: str = "plastic") -> Model:
    """Return a plain copy of a converted model that has one of its branches only.

    φ is multiplied into the kernels, and every weight is a parameter again. The copy can be saved,
    loaded and converted as the network before the conversion. `model` does not change.

    Args:
        model: A converted model. In the base phase there is one branch.
        branch: "plastic", the first one, or "stable", the last one.

    Examples:
        >>> from aanets_plugin import convert_to_aanet
        >>> from aanets_plugin.baselines import resnet20
        >>> type(to_plain(convert_to_aanet(resnet20())).layer1).__name__
        'Sequential'
    """
    require_converted(model, "to_plain")
    require_whole(model, "to_plain")
    if branch not in ("plastic", "stable"):
        raise ConfigurationError(f"branch={branch!r}: must be 'plastic' or 'stable'.")
    plain = copy.deepcopy(model)
    parts = [module for module in plain.modules() if isinstance(module, Branches)]
    replace_modules(plain, {part: getattr(part, branch) for part in parts})
    for part in parts:
        move_hooks(part, getattr(part, branch))
    release(plain, training=model.training)
    forget_conversion(plain)
    return plain


def plain_names(model: nn.Module) -> dict[str, str]:
    """The keys of a state_dict that a plain network has too, and what they are called there."""
    parts = [f"{name}." for name, module in model.named_modules() if isinstance(module, Branches)]
    scales = {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if isinstance(module, Scaled)
        for own in module._parameters
    }
    names: dict[str, str] = {}
    for key in model.state_dict():
        part = next((part for part in parts if key.startswith(part)), None)
        if part is None:
            plain = key
        elif key.startswith(f"{part}branches.0."):
            plain = part + key.removeprefix(f"{part}branches.0.")
        else:
            continue
        if key not in scales:
            names[key] = plain
    return names


def state_differences(
    here: Mapping[str, Any], there: Mapping[str, Any], *, strict: bool = True
) -> str:
    """What differs between two tables of shapes, of a model and of a file, for a message.

    Without `strict` a name may be in one of them only.
    """
    parts = []
    if strict and (missing := [name for name in here if name not in there]):
        parts.append(f"only here: {shorten(missing, 4)}")
    if strict and (unknown := [name for name in there if name not in here]):
        parts.append(f"only there: {shorten(unknown, 4)}")
    parts += [
        f"{name}: {there[name]} there, {value} here"
        for name, value in here.items()
        if name in there and there[name] != value
    ][:4]
    return "; ".join(parts)
