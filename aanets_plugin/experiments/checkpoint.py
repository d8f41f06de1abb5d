"""Checkpoint files: written atomically, verified when read, loaded without executing their code."""

import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from aanets_plugin.errors import AANetError, ConfigurationError
from aanets_plugin.files import replacing

FORMAT = "aanets_plugin run, version 1"
Types = type | tuple[type, ...]
WEIGHTS: dict[str, Types] = {"net": dict, "bilevel": (dict, NoneType)}
"""What the network is saved as, in every checkpoint."""
PHASE: dict[str, Types] = {"rows": list, "exemplars": (dict, NoneType), **WEIGHTS}
"""What a checkpoint at the end of a phase has."""
EPOCH: dict[str, Types] = {"phase": int, "epoch": int, "optimizer": dict, **WEIGHTS}
"""What a checkpoint at the end of an epoch has."""
BASE: dict[str, Types] = {"config": dict, **WEIGHTS}
"""What a checkpoint of the network after the first phase has."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state`. A crash leaves either the old file or the new one, never a part."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path, entries: Mapping[str, Types]) -> dict[str, Any] | None:
    """Read a file of `save` with `weights_only=True`; None if there is no file.

    The checksums of the file are verified, and that it has the `entries`, with their types.
    """
    if not path.exists():
        return None
    with using(path):
        with zipfile.ZipFile(path) as file:
            if (damaged := file.testzip()) is not None:  # torch.load does not look
                raise zipfile.BadZipFile(f"{damaged} has a wrong checksum")
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        form = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise ConfigurationError(
            f"{path} is not a checkpoint of this version: its format is {form!r}, must be "
            f"{FORMAT!r}. Use another output folder, or start without resuming."
        )
    with using(path):
        for name, kinds in entries.items():
            if not isinstance(state[name], kinds):
                raise TypeError(f"{name} is a {type(state[name]).__name__}")
    return state


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Whatever goes wrong while the contents of a checkpoint are used is told with its name."""
    try:
        yield
    except AANetError as error:
        raise ConfigurationError(f"{path} does not fit this run: {error}") from error
    except Exception as error:  # torch raises many types for a damaged file
        lines = [line.strip() for line in str(error).splitlines()[:2]]
        why = ": ".join([type(error).__name__, *lines])
        raise ConfigurationError(
            f"{path} cannot be read ({why}). It is truncated, damaged or not a checkpoint of this "
            f"run. Restore it from a copy, or delete it to resume from the checkpoint before it."
        ) from error
