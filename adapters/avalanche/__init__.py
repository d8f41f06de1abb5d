"""Avalanche: AANetPlugin turns a strategy into its AANets version, alpha_metrics logs α.

Example:
    >>> from aanets_plugin.adapters.avalanche import AANetPlugin, alpha_metrics
    >>> evaluator = EvaluationPlugin(alpha_metrics(), loggers=[InteractiveLogger()])
    >>> strategy = Replay(..., plugins=[AANetPlugin()], evaluator=evaluator)
    >>> for experience in benchmark.train_stream:
    ...     strategy.train(experience)
"""

from .compat import repair_bic, repair_checkpoints
from .metrics import AlphaCSVLogger, AlphaMetric, alpha_metrics
from .plugin import AANetPlugin
from .support import UnsupportedStrategyError

__all__ = [
    "AANetPlugin",
    "AlphaCSVLogger",
    "AlphaMetric",
    "UnsupportedStrategyError",
    "alpha_metrics",
    "repair_bic",
    "repair_checkpoints",
]
