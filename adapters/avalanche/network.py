"""The network of the baselines in Avalanche: any backbone, a head that grows, the benchmark's ids.

A method counts classes in the order of their arrival, a benchmark numbers them as it likes. The two
meet in one place, the buffer `columns` of :class:`BenchmarkNet`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from avalanche.models import IncrementalClassifier, MultiTaskModule
from torch import Tensor, nn
from torch.optim import Optimizer

from aanets_plugin.baselines.network import IncrementalNet, without_head
from aanets_plugin.errors import UnsupportedModelError

UNSEEN = -1000.0
"""The logit of a class that has not been learned; Avalanche's own heads mask with the same."""


class BenchmarkNet(IncrementalNet):
    """An IncrementalNet whose logits are indexed by the class ids of the benchmark.

    `columns[id]` is the column of a class in the head, -1 while it has none. State: that of an
    IncrementalNet, and ``columns``.
    """

    columns: Tensor

    def __init__(self, backbone: nn.Module, fc: nn.Module) -> None:
        super().__init__(backbone, fc)
        self.register_buffer("columns", torch.empty(0, dtype=torch.int64))

    @property
    def classes(self) -> list[int]:
        """Class ids in the order of their columns."""
        known = (self.columns >= 0).nonzero().flatten()
        return known[self.columns[known].argsort()].tolist()

    def widen(self, ids: Sequence[int]) -> None:
        """Give logits for these ids too, be they known or not."""
        missing = max(ids) + 1 - len(self.columns)
        if missing > 0:
            self.columns = F.pad(self.columns, (0, missing), value=-1)

    def add_classes(self, ids: Sequence[int]) -> None:
        """The next columns of the head are these classes."""
        self.widen(ids)
        first = len(self.classes)
        self.columns[list(ids)] = torch.arange(first, first + len(ids)).to(self.columns)

    def by_id(self, logits: Tensor) -> Tensor:
        """Logits of the head, put in the order of the benchmark's class ids."""
        return F.pad(logits, (0, 1), value=UNSEEN)[:, self.columns]

    def forward(self, x: Tensor) -> Tensor:
        return self.by_id(super().forward(x))


def benchmark_net(model: nn.Module) -> BenchmarkNet:
    """`model` as the backbone, its classifier still in it; an IncrementalNet keeps its head."""
    if isinstance(model, MultiTaskModule):
        raise UnsupportedModelError(
            f"{type(model).__name__} wants task labels; expected a network with one head for all "
            f"classes, which is then replaced."
        )
    if isinstance(model, IncrementalNet):
        return BenchmarkNet(model.backbone, model.fc)
    for name, module in list(model.named_modules()):
        if name and isinstance(module, IncrementalClassifier):  # Avalanche would make it grow
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.classifier)
    return BenchmarkNet(model, nn.Identity())


def take_head_off(net: BenchmarkNet, input_shape: tuple[int, ...]) -> list[nn.Parameter]:
    """The parameters of the classifier, which is no longer in the backbone afterwards."""
    if not isinstance(net.fc, nn.Identity):
        return list(net.fc.parameters())
    before = list(net.backbone.parameters())
    without_head(net.backbone, input_shape)
    kept = set(map(id, net.backbone.parameters()))
    return [parameter for parameter in before if id(parameter) not in kept]


def replace_parameters(
    optimizer: Optimizer, old: Sequence[nn.Parameter], new: Sequence[nn.Parameter]
) -> None:
    """Put `new` into the parameter group that has `old`, or else into the last one."""
    gone = set(map(id, old))
    groups = optimizer.param_groups
    home = next((g for g in groups if gone & set(map(id, g["params"]))), groups[-1])
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in gone]
    for parameter in old:
        optimizer.state.pop(parameter, None)
    home["params"] += new
