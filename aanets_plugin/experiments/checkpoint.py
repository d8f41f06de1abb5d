"""Checkpoint files: written atomically, loaded without executing code from them."""

import os
from pathlib import Path
from typing import Any

import torch

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.files import replacing

FORMAT = "aanets_plugin run, version 1"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state`. A crash leaves either the old file or the new one, never a part."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path) -> dict[str, Any] | None:
    """Read a file of `save` with `weights_only=True`; None if there is no file."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a damaged file
        why = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise ConfigurationError(
            f"{path} cannot be read ({why}). It is truncated or not a checkpoint of a run; delete "
            f"it to resume from the checkpoint before it."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        form = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise ConfigurationError(
            f"{path} is not a checkpoint of this version: its format is {form!r}, must be "
            f"{FORMAT!r}. Use another output folder, or start without resuming."
        )
    return state
