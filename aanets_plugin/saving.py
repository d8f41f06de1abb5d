"""save_aanet and load_aanet: a converted model as a folder that needs no pickle.

`model.safetensors` has the state_dict. `aanet.json` has how the plain network is made and
converted, α, and what the caller adds: the phase and the names of the classes.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.checks import require_whole
from aanets_plugin.convert import STEM_RULE, convert_to_aanet, require_converted, thaw_base
from aanets_plugin.errors import AlreadyConvertedError, ConfigurationError
from aanets_plugin.extras import needs
from aanets_plugin.files import replacing, write_text
from aanets_plugin.levels import AdaptiveLevel, PairedStem, levels, named_levels
from aanets_plugin.plain import state_differences, to_plain
from aanets_plugin.recipes import Recipe, build, describe, outline

WEIGHTS, DESCRIPTION = "model.safetensors", "aanet.json"
FORMAT = "aanets_plugin model, version 1"
BY_CALLER = "given by the caller"


def save_aanet(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    network: Recipe | None = None,
    class_names: Sequence[str] | None = None,
    phase: int | None = None,
) -> None:
    """Save a converted model to `folder` as `model.safetensors` and `aanet.json`.

    A model that is in the folder already is replaced when the new one is complete.

    Args:
        model: A converted model, in its base phase or with a frozen base.
        folder: The folder; it is made if it does not exist.
        network: How the plain network is made, such as `{"factory": "torchvision.models.resnet18",
            "arguments": {"num_classes": 50}}`. Default: found out for networks of torchvision, timm
            and this package. Other networks must be passed to `load_aanet`.
        class_names: The names of the classes, in the order of the outputs.
        phase: The number of the last phase.

    Example::

        save_aanet(model, "model", class_names=["cat", "dog"])
        model = load_aanet("model")
    """
    require_converted(model, "save_aanet")
    require_whole(model, "save_aanet")
    safetensors = needs("safetensors.torch", "save")
    plain = to_plain(_skeleton(model))
    if network is None:
        network = describe(plain)
    elif differences := state_differences(outline(build(network)), outline(plain)):
        raise ConfigurationError(
            f"network={network!r}: is not what this model was before its conversion: "
            f"{differences}. Correct it, or leave it out."
        )
    state = model.state_dict()
    alphas = {name: level.alpha for name, level in named_levels(model).items()}
    description = {
        "format": FORMAT,
        "id": uuid.uuid4().hex,
        "network": network or BY_CALLER,
        "conversions": _conversions(model),
        "base_frozen": levels(model)[0].base_frozen,
        "alpha": {name: None if a is None else a.tolist() for name, a in alphas.items()},
        "phase": phase,
        "class_names": None if class_names is None else [str(name) for name in class_names],
        "channels_last": any(map(_is_channels_last, state.values())),
        "plain": outline(plain),
    }
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    with replacing(Path(folder) / WEIGHTS) as temporary:
        # The description is in both files, so that a crash between the two loses neither model.
        safetensors.save_file(_independent(state), temporary, metadata={DESCRIPTION: text})
    write_text(Path(folder) / DESCRIPTION, text)


def load_aanet(folder: str | os.PathLike[str], plain_model: nn.Module | None = None) -> nn.Module:
    """Return the model that `save_aanet` saved in `folder`, in eval mode.

    Its outputs are those of the saved model to the bit.

    Args:
        folder: The folder with `model.safetensors` and `aanet.json`.
        plain_model: The plain network, which is converted in place. Needed if `aanet.json` does not
            say how to make it.
    """
    folder = Path(folder)
    description, state = _read(folder)
    if plain_model is not None:
        model = _checked_plain(plain_model)
    elif description["network"] == BY_CALLER:
        raise ConfigurationError(
            f"{folder / DESCRIPTION} does not say how the plain network is made. Pass it: "
            f"load_aanet(folder, plain_model)."
        )
    else:
        model = build(description["network"])
    if differences := state_differences(outline(model), description["plain"]):
        raise ConfigurationError(
            f"{type(model).__name__} is not the network that was saved in {folder}: {differences}. "
            f"Pass the same network as it was before convert_to_aanet."
        )
    shapes = outline(_convert(_skeleton(model), description))
    if differences := state_differences(
        {k: v for k, v in shapes.items() if isinstance(v, list)},
        {key: list(value.shape) for key, value in state.items()},
    ):
        raise ConfigurationError(f"{folder / WEIGHTS} does not fit {DESCRIPTION}: {differences}.")
    for key, value in _convert(model, description).state_dict(keep_vars=True).items():
        value.data = value.data.to(state[key].dtype)
    model.load_state_dict(state)
    if description["channels_last"]:
        model.to(memory_format=torch.channels_last)
    return model.eval()


def read_description(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the contents of `aanet.json`."""
    return _read(Path(folder))[0]


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read both files and check that they are complete and belong together."""
    safetensors = needs("safetensors", "save")
    for name in (WEIGHTS, DESCRIPTION):
        if not (folder / name).is_file():
            raise ConfigurationError(
                f"{folder / name} does not exist. Pass a folder that save_aanet has written."
            )
    try:
        with safetensors.safe_open(folder / WEIGHTS, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ConfigurationError(
            f"{folder / WEIGHTS} cannot be read ({error}). It is truncated or not a safetensors "
            f"file; copy it again."
        ) from error
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        form = description.get("format")
    except (ValueError, AttributeError) as error:
        raise ConfigurationError(f"{folder / DESCRIPTION} cannot be read: {error}.") from error
    if form != FORMAT:
        raise ConfigurationError(
            f"{folder / DESCRIPTION} has the format {form!r}, must be {FORMAT!r}. Load it with the "
            f"version of aanets_plugin that has saved it."
        )
    inside = json.loads(metadata.get(DESCRIPTION, "{}"))
    if description.get("id") != inside.get("id"):  # saving was interrupted between the two files
        description = inside
    if missing := inside.keys() - description.keys():
        raise ConfigurationError(
            f"{folder / DESCRIPTION} has no {', '.join(sorted(missing))}. Copy the file again."
        )
    if not inside:
        raise ConfigurationError(
            f"{folder / WEIGHTS} was not written by save_aanet. Save the model with save_aanet."
        )
    return description, state


def _checked_plain(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"plain_model={model!r:.80}: must be a torch.nn.Module.")
    if levels(model):
        raise AlreadyConvertedError(
            f"plain_model is a {type(model).__name__} that is converted already. Pass the network "
            f"as it was before convert_to_aanet."
        )
    return model


def _conversions(model: nn.Module) -> list[dict[str, Any]]:
    """The calls of `convert_to_aanet` that made this model, by the module that was converted."""
    calls: dict[str, dict[str, Any]] = {}
    for name, level in model.named_modules():
        if not isinstance(level, AdaptiveLevel):
            continue
        # A host may have put the levels elsewhere; then they are named as they are now.
        stays = f".{name}".endswith(f".{level.name}")
        root = name.removesuffix(level.name).rstrip(".") if stays else ""
        call = calls.setdefault(
            root,
            {
                "module": root,
                "blocks": list(level.blocks),
                "stem": _stem_of(model.get_submodule(root)),
                "stages": [],
                "alpha": list(level.initial_alpha),
            },
        )
        call["stages"].append(level.name if stays else name)
    return list(calls.values())


def _stem_of(model: nn.Module) -> str:
    if any(isinstance(module, PairedStem) for module in model.modules()):
        return "paired"
    rules = {vars(m)[STEM_RULE] for m in model.modules() if STEM_RULE in vars(m)}
    return "plastic" if rules == {"all"} else "stable"


def _convert(model: nn.Module, description: dict[str, Any]) -> nn.Module:
    for call in description["conversions"]:
        options = {key: call[key] for key in ("blocks", "stem", "stages", "alpha")}
        convert_to_aanet(model.get_submodule(call["module"]), **options)
    if not description["base_frozen"]:
        thaw_base(model)
    return model


def _skeleton(model: nn.Module) -> nn.Module:
    """A copy on the meta device: all modules and shapes, no numbers."""
    memo: dict[int, Any] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return copy.deepcopy(model, memo)


def _independent(state: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state_dict on the CPU, none of which shares memory with another."""
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise ConfigurationError(
                f"{key} in the state_dict is a {type(value).__name__}: must be a tensor to be "
                f"saved without pickle."
            )
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        tensors[key] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return tensors


def _is_channels_last(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dim() == 4
        and value.is_contiguous(memory_format=torch.channels_last)
        and not value.is_contiguous()
    )
