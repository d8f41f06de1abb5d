"""Runs, comparisons and their results.

Names are imported on first use, so that result tables and plots need neither Continuum nor
Accelerate.
"""

from typing import TYPE_CHECKING

from aanets_plugin.lazy_names import on_first_use

if TYPE_CHECKING:
    from aanets_plugin.experiments.accuracy_plot import plot_accuracy as plot_accuracy
    from aanets_plugin.experiments.arms import Arm as Arm
    from aanets_plugin.experiments.arms import arms_of as arms_of
    from aanets_plugin.experiments.cli import main as main
    from aanets_plugin.experiments.comparison import compare as compare
    from aanets_plugin.experiments.datasets import load_data as load_data
    from aanets_plugin.experiments.datasets import scenarios as scenarios
    from aanets_plugin.experiments.predictor import Predictions as Predictions
    from aanets_plugin.experiments.predictor import Predictor as Predictor
    from aanets_plugin.experiments.predictor import load_run as load_run
    from aanets_plugin.experiments.results import Result as Result
    from aanets_plugin.experiments.results import accuracy_table as accuracy_table
    from aanets_plugin.experiments.results import paired_table as paired_table
    from aanets_plugin.experiments.results import results_table as results_table
    from aanets_plugin.experiments.runner import run as run
    from aanets_plugin.experiments.settings import AANets as AANets
    from aanets_plugin.experiments.settings import Memory as Memory
    from aanets_plugin.experiments.settings import Training as Training

_NAMES = {
    "accuracy_plot": ("plot_accuracy",),
    "arms": ("Arm", "arms_of"),
    "cli": ("main",),
    "comparison": ("compare",),
    "datasets": ("load_data", "scenarios"),
    "predictor": ("Predictions", "Predictor", "load_run"),
    "results": ("Result", "accuracy_table", "paired_table", "results_table"),
    "runner": ("run",),
    "settings": ("AANets", "Memory", "Training"),
}
__getattr__, __all__ = on_first_use(__name__, _NAMES)
