"""FACIL: `with_aanets(approach)` gives an incremental learning approach its AANets version.

In FACIL's `main_incremental.py`, after the approach is made:

    from aanets_plugin.adapters.facil import with_aanets
    appr = with_aanets(appr)
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aanets_plugin.errors import UnsupportedModelError

from .bookkeeping import carry_over
from .hosts import HostAdapter

Approach = TypeVar("Approach")


def with_aanets(approach: Approach, **options: Any) -> Approach:
    """Convert the network of a FACIL approach and learn α in its training; returns `approach`.

    The training of each task is a phase. α learns after each epoch of the main training (not in the
    warm-up of the head, a fine-tuning or a bias correction), on equally many samples of every
    class, from the task's data and the exemplars. For an approach without exemplars, 20
    samples of each old class are kept for α alone. Where FACIL goes back to its best epoch, α goes
    back with it. `approach.bilevel` has the history of α.

    DMC, which trains new networks in each task, is refused.

    Args:
        approach: An `Appr`, before its first task.
        options: Options of `AANetConfig`, and `loss_fn`, `base_phase` and `batch_size` of
            `HostAdapter`.
    """
    _check(approach)
    adapter = FACILAdapter(approach, **options)
    adapter.phase_around("train_loop")
    adapter.before("train_loop", adapter.see_task)
    adapter.before("train_epoch", adapter.see_epoch)
    return approach


class FACILAdapter(HostAdapter):
    """Where things are in a FACIL approach."""

    def __init__(self, host: Any, **options: Any) -> None:
        self.data: Any = None
        self.loader: Any = None
        super().__init__(host, **options)
        self.keep_in_state_dict(host.model)

    def see_task(self, t: int, trn_loader: Any, val_loader: Any) -> None:
        """Keep the training data of the task."""
        self.data = trn_loader.dataset

    def see_epoch(self, t: int, trn_loader: Any) -> None:
        """Exemplars are in this loader, so that it has more steps than that of the task."""
        self.loader = trn_loader

    def network(self) -> nn.Module:
        """Return the network with all heads."""
        return self.host.model  # type: ignore[no-any-return]

    def backbone(self) -> nn.Module:
        """Return the network without its heads."""
        return self.host.model.model  # type: ignore[no-any-return]

    def training_data(self) -> Any:
        """Return the data of the task, which may contain exemplars."""
        return self.data

    def memory(self) -> Any:
        """Return a copy of the exemplars as they are now; None if there are none."""
        exemplars = self.host.exemplars_dataset
        return copy.copy(exemplars) if exemplars is not None and len(exemplars) else None

    def steps_per_epoch(self) -> int:
        """Return the number of batches of the loader that trains."""
        return len(self.loader)

    def logits(self, outputs: Any) -> Tensor:
        """The outputs of all heads, with BiC's correction if there is one."""
        if hasattr(self.host, "bias_forward"):
            outputs = self.host.bias_forward(outputs)
        return super().logits(outputs)

    def optimizer(self) -> Optimizer | None:
        """Return the optimizer of the last task, if there is one."""
        return getattr(self.host, "optimizer", None)

    def parameters_changed(
        self, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]
    ) -> None:
        """EWC, MAS, Path Integral and RWalk keep dicts over the parameters of the backbone."""
        old, now = _of_backbone(before), _of_backbone(after)
        for name, values in list(vars(self.host).items()):
            if isinstance(values, dict) and values and values.keys() <= old.keys():
                # Importances of new parameters are 0, and they are compared with what they are now.
                new = torch.clone if name == "older_params" else torch.zeros_like
                setattr(self.host, name, carry_over(values, old, now, new))


def _of_backbone(parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    start = "model."
    return {name[len(start) :]: p for name, p in parameters.items() if name.startswith(start)}


def _check(approach: Any) -> None:
    """Refuse what cannot work, before anything is touched."""
    network = getattr(approach, "model", None)
    if not isinstance(getattr(network, "model", None), nn.Module) or not hasattr(
        approach, "train_epoch"
    ):
        raise UnsupportedModelError(
            f"{type(approach).__name__} is not a FACIL approach: it has no `model.model` that is a "
            f"torch.nn.Module, or no `train_epoch`. Pass the Appr that FACIL trains with."
        )
    if hasattr(approach, "model_new"):
        raise UnsupportedModelError(
            f"{type(approach).__module__} trains two networks from the start in each task. There "
            f"is no earlier network to be stable, so that AANets has nothing to aggregate."
        )
