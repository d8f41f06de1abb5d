"""α as an Avalanche metric, and a CSV logger for it."""

from __future__ import annotations

import csv
from os import PathLike
from pathlib import Path
from typing import Any

from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metric_utils import get_metric_name
from avalanche.logging import CSVLogger

from aanets_plugin.levels import named_levels

from .plugin import AANetPlugin

_PREFIX = "Alpha_"


def alpha_metrics() -> list[AlphaMetric]:
    """Return the metric that logs α of each level after each training epoch.

    Pass it to the evaluator: `EvaluationPlugin(alpha_metrics(), ...)`. The names of the values are
    `Alpha_Plastic_Epoch/train_phase/train_stream/Task000/layer1` and `Alpha_Stable_Epoch/...`. In
    the first experience there is no α, so no values are logged.
    """
    return [AlphaMetric()]


class AlphaMetric(PluginMetric):  # type: ignore[misc]
    """The aggregation weights α of a strategy with an AANetPlugin."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[str, list[float]] = {}

    def result(self) -> dict[str, list[float]]:
        """Return the current α of each level, one weight per branch."""
        return self._weights

    def reset(self) -> None:
        """Forget the weights."""
        self._weights = {}

    def after_training_epoch(self, strategy: Any) -> list[MetricValue]:
        """Emit α of each level and branch."""
        model = AANetPlugin.of(strategy).bilevel.model
        self._weights = {
            name: level.alpha.tolist()
            for name, level in named_levels(model).items()
            if level.alpha is not None
        }
        step = strategy.clock.train_iterations
        return [
            MetricValue(self, f"{get_metric_name(name, strategy)}/{level}", weight, step)
            for level, weights in self._weights.items()
            for name, weight in zip(_branch_names(len(weights)), weights, strict=True)
        ]

    def __str__(self) -> str:
        return f"{_PREFIX}Epoch"


def _branch_names(count: int) -> list[str]:
    middle = [f"Branch{branch}" for branch in range(1, count - 1)]
    names = ["Plastic", *middle, "Stable"][:count]
    return [f"{_PREFIX}{name}_Epoch" for name in names]


class AlphaCSVLogger(CSVLogger):  # type: ignore[misc]
    """Avalanche's CSVLogger with a third file, `alpha_results.csv`, one row per value of α."""

    def __init__(self, log_folder: str | PathLike[str] | None = None) -> None:
        super().__init__(log_folder)
        self.alpha_path = Path(self.log_folder) / "alpha_results.csv"
        self._write("w", [("training_exp", "epoch", "metric", "value")])

    def after_training_epoch(self, strategy: Any, metric_values: Any, **kwargs: Any) -> None:
        """Write a row for each value of α, besides Avalanche's own rows."""
        super().after_training_epoch(strategy, metric_values, **kwargs)
        position = (self.training_exp_id, strategy.clock.train_exp_epochs)
        alphas = [value for value in metric_values if value.name.startswith(_PREFIX)]
        self._write("a", [(*position, alpha.name, alpha.value) for alpha in alphas])

    def _write(self, mode: str, rows: list[tuple[Any, ...]]) -> None:
        with self.alpha_path.open(mode, newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
