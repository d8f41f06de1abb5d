"""Runs, comparisons and their reports.

The names are loaded on first use: result tables and plots need neither Continuum nor Accelerate.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aanets_plugin.experiments.comparison import Arm, arms_of, compare
    from aanets_plugin.experiments.datasets import load_data, scenarios
    from aanets_plugin.experiments.results import (
        Result,
        paired_table,
        plot_accuracy,
        results_table,
    )
    from aanets_plugin.experiments.runner import run
    from aanets_plugin.experiments.settings import AANets, Memory, Training

_MODULES = {
    "AANets": "settings",
    "Arm": "comparison",
    "Memory": "settings",
    "Result": "results",
    "Training": "settings",
    "arms_of": "comparison",
    "compare": "comparison",
    "load_data": "datasets",
    "paired_table": "results",
    "plot_accuracy": "results",
    "results_table": "results",
    "run": "runner",
    "scenarios": "datasets",
}

__all__ = [
    "AANets",
    "Arm",
    "Memory",
    "Result",
    "Training",
    "arms_of",
    "compare",
    "load_data",
    "paired_table",
    "plot_accuracy",
    "results_table",
    "run",
    "scenarios",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
