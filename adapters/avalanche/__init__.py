"""Avalanche adapter: `AANetPlugin` adds AANets to any strategy, and `alpha_metrics` logs α.

LUCIR, PODNet and Mnemonics are strategies. Example:

    evaluator = EvaluationPlugin(alpha_metrics(), loggers=[InteractiveLogger()])
    strategy = Replay(..., plugins=[AANetPlugin()], evaluator=evaluator)
"""

from .compat import repair_bic, repair_checkpoints
from .incremental import IncrementalStrategy
from .metrics import AlphaCSVLogger, AlphaMetric, alpha_metrics
from .plugin import AANetPlugin
from .strategies import LUCIR, Mnemonics, PODNet
from .support import UnsupportedStrategyError

__all__ = [
    "AANetPlugin",
    "AlphaCSVLogger",
    "AlphaMetric",
    "IncrementalStrategy",
    "LUCIR",
    "Mnemonics",
    "PODNet",
    "UnsupportedStrategyError",
    "alpha_metrics",
    "repair_bic",
    "repair_checkpoints",
]
