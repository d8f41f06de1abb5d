"""State on disk: written under a temporary name and renamed, read without running any code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from aanets_plugin.errors import ConfigurationError

FORMAT = "aanets_plugin run, version 1"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state`; a crash at any moment leaves the old file or the new one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(temporary, "wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: Path) -> dict[str, Any] | None:
    """Read what `save` wrote, with `weights_only=True`; None where there is no file."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not whole
        why = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise ConfigurationError(
            f"{path} cannot be read ({why}). It is truncated or not a checkpoint of a run; delete "
            f"it to go back to the state before."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise ConfigurationError(
            f"{path} is not a checkpoint of this version: expected the format {FORMAT!r}, found "
            f"{found!r}. Give another output folder, or start without resuming."
        )
    return state


def write_text(path: Path, text: str) -> None:
    """A small file, as safely."""
    temporary = path.with_name(path.name + ".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
