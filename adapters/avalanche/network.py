"""The network of the methods in Avalanche.

A method numbers classes in the order of arrival; a benchmark has its own class ids. The buffer
`columns` of `BenchmarkNet` translates between the two, and nothing else does.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from avalanche.models import IncrementalClassifier, MultiTaskModule
from torch import Tensor, nn
from torch.optim import Optimizer

from aanets_plugin.baselines.network import IncrementalNet, without_head
from aanets_plugin.errors import UnsupportedModelError

UNSEEN = -1000.0
"""The logit of classes that are not learned yet, the same as in Avalanche's own heads."""


class BenchmarkNet(IncrementalNet):
    """An IncrementalNet whose logits are indexed by the class ids of the benchmark.

    `columns[id]` is the column of a class in the head, or -1 if it has none yet. State: that of
    IncrementalNet, and `columns`.
    """

    columns: Tensor

    def __init__(self, backbone: nn.Module, fc: nn.Module) -> None:
        super().__init__(backbone, fc)
        self.register_buffer("columns", torch.empty(0, dtype=torch.int64))

    @property
    def classes(self) -> list[int]:
        """The class ids in the order of their columns."""
        known = (self.columns >= 0).nonzero().flatten()
        return known[self.columns[known].argsort()].tolist()

    def widen(self, ids: Sequence[int]) -> None:
        """Extend the logits to these class ids, learned or not."""
        missing = max(ids) + 1 - len(self.columns)
        if missing > 0:
            self.columns = F.pad(self.columns, (0, missing), value=-1)

    def add_classes(self, ids: Sequence[int]) -> None:
        """Assign the next columns of the head to these class ids."""
        self.widen(ids)
        first = len(self.classes)
        self.columns[list(ids)] = torch.arange(first, first + len(ids)).to(self.columns)

    def by_id(self, logits: Tensor) -> Tensor:
        """Reorder logits of the head by class id."""
        return F.pad(logits, (0, 1), value=UNSEEN)[:, self.columns]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, indexed by class id."""
        return self.by_id(super().forward(x))


def benchmark_net(model: nn.Module) -> BenchmarkNet:
    """Wrap `model` as the backbone, with its classifier; an IncrementalNet keeps its head."""
    if isinstance(model, MultiTaskModule):
        raise UnsupportedModelError(
            f"{type(model).__name__} wants task labels: must be a network with one head for all "
            f"classes, which is replaced."
        )
    if isinstance(model, IncrementalNet):
        return BenchmarkNet(model.backbone, model.fc)
    for name, module in list(model.named_modules()):
        if name and isinstance(module, IncrementalClassifier):  # Avalanche would grow it itself
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.classifier)
    return BenchmarkNet(model, nn.Identity())


def take_head_off(net: BenchmarkNet, input_shape: tuple[int, ...]) -> list[nn.Parameter]:
    """Remove the classifier from the backbone and return its parameters."""
    if not isinstance(net.fc, nn.Identity):
        return list(net.fc.parameters())
    before = list(net.backbone.parameters())
    without_head(net.backbone, input_shape)
    kept = set(map(id, net.backbone.parameters()))
    return [parameter for parameter in before if id(parameter) not in kept]


def replace_parameters(
    optimizer: Optimizer, old: Sequence[nn.Parameter], new: Sequence[nn.Parameter]
) -> None:
    """Replace `old` by `new` in their parameter group; without `old`, add to the last group."""
    removed = set(map(id, old))
    groups = optimizer.param_groups
    target = next((g for g in groups if removed & set(map(id, g["params"]))), groups[-1])
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in removed]
    for parameter in old:
        optimizer.state.pop(parameter, None)
    target["params"] += new
