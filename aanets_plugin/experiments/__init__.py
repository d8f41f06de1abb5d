"""Runs, comparisons and their results.

Names are imported on first use, so that result tables and plots need neither Continuum nor
Accelerate.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aanets_plugin.experiments.accuracy_plot import plot_accuracy
    from aanets_plugin.experiments.cli import main
    from aanets_plugin.experiments.comparison import Arm, arms_of, compare
    from aanets_plugin.experiments.datasets import load_data, scenarios
    from aanets_plugin.experiments.results import (
        Result,
        accuracy_table,
        paired_table,
        results_table,
    )
    from aanets_plugin.experiments.runner import run
    from aanets_plugin.experiments.settings import AANets, Memory, Training

__all__ = [
    "AANets",
    "Arm",
    "Memory",
    "Result",
    "Training",
    "accuracy_table",
    "arms_of",
    "compare",
    "load_data",
    "main",
    "paired_table",
    "plot_accuracy",
    "results_table",
    "run",
    "scenarios",
]

_NAMES_OF_MODULES = {
    "accuracy_plot": ("plot_accuracy",),
    "cli": ("main",),
    "comparison": ("Arm", "arms_of", "compare"),
    "datasets": ("load_data", "scenarios"),
    "results": ("Result", "accuracy_table", "paired_table", "results_table"),
    "runner": ("run",),
    "settings": ("AANets", "Memory", "Training"),
}
_MODULES = {name: module for module, names in _NAMES_OF_MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
