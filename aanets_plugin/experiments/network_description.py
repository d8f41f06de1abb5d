"""What a run's folder says about its network, so that `load_run` can make it again."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torchvision import transforms as T

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.recipes import describe

_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "ToTensor": (),
    "Normalize": ("mean", "std"),
    "Resize": ("size",),
    "CenterCrop": ("size",),
    "Grayscale": ("num_output_channels",),
}
"""The transforms that are written to JSON, and the arguments that make them."""


def network_description(
    backbone: nn.Module, phases: Phases, class_names: Sequence[str] | None
) -> dict[str, Any]:
    """How the plain backbone is made, the names of the classes as they are learned, transforms.

    What is not known is None; then the caller passes it to `load_run`.
    """
    order = getattr(phases.scenarios[0], "class_order", None)
    labels = range(phases.classes) if order is None else [int(label) for label in order]
    if class_names and len(class_names) != phases.classes:
        raise ConfigurationError(
            f"class_names has {len(class_names)} names: must have {phases.classes}, one for each "
            f"class of the dataset."
        )
    return {
        "backbone": describe(backbone),
        "class_names": [str(class_names[label] if class_names else label) for label in labels],
        "transforms": _as_json(phases.test_transforms),
    }


def _as_json(transform: Any) -> list[dict[str, Any]] | None:
    steps = []
    for step in getattr(transform, "transforms", [transform]):
        name = type(step).__name__
        if type(step) is not getattr(T, name, None) or name not in _ATTRIBUTES:
            return None
        options = {key: _plain(getattr(step, key)) for key in _ATTRIBUTES[name]}
        if _shown(getattr(T, name)(**options)) != _shown(step):  # it has other options, too
            return None
        steps.append({"name": name, **options})
    return steps


def transforms_from(steps: list[dict[str, Any]]) -> Any:
    """The transforms of a network description."""
    made = []
    for step in steps:
        options = {key: step[key] for key in _ATTRIBUTES[step["name"]]}
        made.append(getattr(T, step["name"])(**options))
    return T.Compose(made)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(step: Any) -> str:
    """The transform as text, in which tuples are lists."""
    return repr(step).replace("(", "[").replace(")", "]")
