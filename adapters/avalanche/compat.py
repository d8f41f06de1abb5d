"""Fixes for Avalanche 0.6: current torch versions, and parameters that are added later."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
from avalanche.training.plugins import BiCPlugin, EWCPlugin, bic
from avalanche.training.utils import ParamData
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR


def repair_bic() -> None:
    """Make Avalanche's BiC work with torch versions whose schedulers have no `verbose` argument.

    BiC passes `verbose=False` to the scheduler of its second stage. AANetPlugin calls this function
    if the strategy uses BiC. To use BiC without AANetPlugin, call it yourself.
    """
    takes_verbose = "verbose" in inspect.signature(MultiStepLR).parameters
    if bic.MultiStepLR is MultiStepLR and not takes_verbose:
        bic.MultiStepLR = _quiet_multi_step_lr


def _quiet_multi_step_lr(*args: Any, verbose: bool = False, **options: Any) -> MultiStepLR:
    return MultiStepLR(*args, **options)


def repair_checkpoints() -> None:
    """Make Avalanche's `save_checkpoint` work with torch versions that hide optimizer modules.

    Current torch deletes names such as `torch.optim.sgd`. dill, which writes the checkpoints, then
    cannot import the class of the optimizer, tries to save its source code instead, and fails.
    AANetPlugin and the strategies of this package call this function.
    """
    for path, module in list(sys.modules.items()):
        parent, _, name = path.rpartition(".")
        if parent == "torch.optim" and not hasattr(torch.optim, name):
            setattr(torch.optim, name, module)


def prepare(strategy: Any) -> None:
    """Apply the fixes that `strategy` needs."""
    repair_checkpoints()
    if any(isinstance(plugin, BiCPlugin) for plugin in strategy.plugins):
        repair_bic()


def follow_importances(strategy: Any, parameters: Mapping[str, nn.Parameter]) -> None:
    """Add the parameters that `freeze_base` created to the importances of online EWC.

    EWC sums importances by position and fails if the names differ. New parameters get importance
    zero, as EWC does for new units of a classifier.
    """
    for plugin in strategy.plugins:
        if isinstance(plugin, EWCPlugin) and plugin.mode == "online":
            for experience, known in plugin.importances.items():
                plugin.importances[experience] = {
                    name: known.get(name, ParamData(f"imp_{name}", p.shape, device=p.device))
                    for name, p in parameters.items()
                }
