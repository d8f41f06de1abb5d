"""Continuum: balanced data for α, a herded rehearsal memory, and scenarios as phases.

The names of the experiment runner are in `aanets_plugin.experiments`; `run`, `scenarios` and the
others that were here before can still be imported from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .loaders import balanced_loader
from .memory import herd_samples, rehearsal_memory
from .phases import Phases

__all__ = ["Phases", "balanced_loader", "herd_samples", "rehearsal_memory"]

_MOVED = ("AANets", "Memory", "Result", "Training", "load_data", "run", "scenarios")


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("aanets_plugin.experiments"), name)
