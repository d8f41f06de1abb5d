"""Networks in a run: how they are built, taught by their predecessor, and looked at."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.method import Method
from aanets_plugin.baselines.network import IncrementalNet, feature_count, without_head
from aanets_plugin.modes import evaluating

Backbone = nn.Module | Callable[[], nn.Module]


def build(
    backbone: Backbone, method: Method, classes: int, input_shape: tuple[int, ...]
) -> IncrementalNet:
    """A plain network for the first phase; a given module is copied, a function is called."""
    model = copy.deepcopy(backbone) if isinstance(backbone, nn.Module) else backbone()
    body = without_head(model, input_shape)
    return IncrementalNet(body, method.head(feature_count(body, input_shape), classes))


def teacher_of(net: IncrementalNet) -> IncrementalNet:
    """The network as it is now, for the next phase to look back at."""
    return copy.deepcopy(net).requires_grad_(False).eval()


class Lesson(nn.Module):
    """The loss of a batch as a module, so that a distributed wrapper sees one forward."""

    def __init__(self, method: Method, net: IncrementalNet, teacher: IncrementalNet | None) -> None:
        super().__init__()
        self.method = method
        self.net = net
        self._teacher = [teacher]  # a list hides it: it is no child, neither learned nor shared

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (teacher,) = self._teacher
        if teacher is None:
            return self.method.loss(self.net.fc, self.method.observe(self.net, x), y, None)
        out = self.method.observe(self.net, x, maps=True)
        with torch.no_grad():
            taught = self.method.observe(teacher, x, maps=True)
        return self.method.loss(self.net.fc, out, y, taught)


class HeadLesson(nn.Module):
    """The same for fine-tuning of the head alone: the backbone keeps its statistics, no graph."""

    def __init__(self, method: Method, net: IncrementalNet) -> None:
        super().__init__()
        self.method = method
        self.fc = net.fc
        self._net = [net]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (net,) = self._net
        with torch.no_grad(), evaluating(net):
            out = self.method.observe(net, x)
        scores, logits = self.method.score(self.fc, out.features)
        return self.method.loss(self.fc, type(out)(out.features, scores, logits), y, None)
