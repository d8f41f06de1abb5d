"""Continuum: the balanced data of α for loops of one's own, and a runner for the baselines."""

from .datasets import load_data, scenarios
from .loaders import balanced_loader
from .report import Result
from .runner import run
from .settings import AANets, Memory, Training

__all__ = [
    "AANets",
    "Memory",
    "Result",
    "Training",
    "balanced_loader",
    "load_data",
    "run",
    "scenarios",
]
