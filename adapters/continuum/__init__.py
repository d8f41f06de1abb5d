"""Continuum: balanced data for α, a rehearsal memory with herding, and scenarios as phases.

This package needs torch and Continuum. The names of the experiment runner, such as `run`, are in
`aanets_plugin.experiments`; they can also be imported from here, and are loaded on first use.
"""

from importlib import import_module
from typing import Any

from .loaders import balanced_loader
from .memory import herd_samples, rehearsal_memory
from .phases import Phases

__all__ = ["Phases", "balanced_loader", "herd_samples", "rehearsal_memory"]


def __getattr__(name: str) -> Any:
    experiments = import_module("aanets_plugin.experiments")
    if name not in experiments.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(experiments, name)
