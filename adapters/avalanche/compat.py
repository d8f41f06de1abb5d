"""Where Avalanche 0.6 needs a hand: with current torch, and with parameters that appear."""

from __future__ import annotations

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
    """Make Avalanche's BiC run on a torch whose schedulers take no `verbose`.

    BiC passes `verbose=False` to the scheduler of its second stage, an argument that torch has
    removed. AANetPlugin calls this for a strategy with BiC; for BiC alone, call it yourself.
    """
    takes_verbose = "verbose" in inspect.signature(MultiStepLR).parameters
    if bic.MultiStepLR is MultiStepLR and not takes_verbose:
        bic.MultiStepLR = _quiet_multi_step_lr


def _quiet_multi_step_lr(*args: Any, verbose: bool = False, **options: Any) -> MultiStepLR:
    return MultiStepLR(*args, **options)


def repair_checkpoints() -> None:
    """Make Avalanche's `save_checkpoint` run on a torch that hides the modules of its optimizers.

    `torch.optim` deletes the names of its own modules, such as `torch.optim.sgd`. dill, which
    Avalanche saves with, then takes the class of the optimizer for one that cannot be imported,
    saves its source instead, and fails in the middle of it. AANetPlugin calls this.
    """
    for path, module in list(sys.modules.items()):
        parent, _, name = path.rpartition(".")
        if parent == "torch.optim" and not hasattr(torch.optim, name):
            setattr(torch.optim, name, module)


def prepare(strategy: Any) -> None:
    """Repairs that `strategy` needs before it trains."""
    repair_checkpoints()
    if any(isinstance(plugin, BiCPlugin) for plugin in strategy.plugins):
        repair_bic()


def follow_importances(strategy: Any, parameters: Mapping[str, nn.Parameter]) -> None:
    """Let online EWC know the parameters that `freeze_base` brought.

    It adds up importances position by position and stops where the names differ. A parameter that
    is new has no importance yet, which is also how EWC treats new units of a classifier.
    """
    for plugin in strategy.plugins:
        if isinstance(plugin, EWCPlugin) and plugin.mode == "online":
            for experience, known in plugin.importances.items():
                plugin.importances[experience] = {
                    name: known.get(name, _no_importance(name, parameter))
                    for name, parameter in parameters.items()
                }


def _no_importance(name: str, parameter: nn.Parameter) -> Any:
    return ParamData(f"imp_{name}", parameter.shape, device=parameter.device)
