"""Classifier heads, and how they grow when new classes arrive.

State of a :class:`CosineLinear`: ``weight``, ``sigma``. State of a :class:`SplitCosineLinear`:
``sigma``, ``fc1.weight`` (old classes), ``fc2.weight`` (new classes).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.precision import cosines
from aanets_plugin.baselines.prediction import class_means
from aanets_plugin.checks import positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import MapStyle, targets_of


class CosineScores(nn.Module):
    """Cosine similarity of features and class weights: one score in [-1, 1] per class."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        bound = 1 / math.sqrt(in_features)
        nn.init.uniform_(self.weight, -bound, bound)

    def scores(self, features: Tensor) -> Tensor:
        """The cosines, without any scale: [batch, out_features]."""
        return cosines(features, self.weight)

    def forward(self, features: Tensor) -> Tensor:
        return self.scores(features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class CosineLinear(CosineScores):
    """LUCIR's classifier: cosine similarity of features and class weights, times a learned σ."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.sigma = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        return self.sigma * self.scores(features)


class SplitCosineLinear(nn.Module):
    """A cosine classifier that keeps its ``old`` classes (``fc1``) apart from its ``new`` ones
    (``fc2``), under one σ. The old classes come first in the output.

    LUCIR fixes what the old classes' weights have become: ``head.fc1.requires_grad_(False)``.
    Its margin ranking works on the cosines, its cross-entropy on the logits; both come from one
    product:

    >>> head = SplitCosineLinear(64, old=50, new=10)
    >>> scores = head.scores(torch.randn(8, 64))
    >>> logits = head.sigma * scores  # what head(features) gives
    >>> logits.shape
    torch.Size([8, 60])
    """

    def __init__(self, in_features: int, old: int, new: int) -> None:
        super().__init__()
        old, new = positive(old, "old"), positive(new, "new")
        self.in_features = in_features
        self.out_features = old + new
        self.fc1 = CosineScores(in_features, old)
        self.fc2 = CosineScores(in_features, new)
        self.sigma = nn.Parameter(torch.ones(1))

    @property
    def weight(self) -> Tensor:
        """All class weights, old ones first: a joined copy, to read from."""
        return torch.cat([self.fc1.weight, self.fc2.weight])

    def scores(self, features: Tensor) -> Tensor:
        """The cosines, without σ: [batch, old + new]."""
        return torch.cat([self.fc1(features), self.fc2(features)], dim=1)

    def forward(self, features: Tensor) -> Tensor:
        return self.sigma * self.scores(features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def grow_cosine(
    head: CosineLinear | SplitCosineLinear, new_classes: int, imprint: Tensor | None = None
) -> SplitCosineLinear:
    """A head with ``new_classes`` more outputs; ``head`` itself is left as it is.

    Every class that ``head`` knows becomes an old one, with a copy of its weights; σ is kept. The
    new weights are ``imprint`` ([new_classes, in_features], see :func:`imprinted_weights`), or
    random. All parameters of the result learn until the caller freezes some.

    >>> grow_cosine(CosineLinear(64, 50), 10)
    SplitCosineLinear(
      in_features=64, out_features=60
      (fc1): CosineScores(in_features=64, out_features=50)
      (fc2): CosineScores(in_features=64, out_features=10)
    )
    """
    if not isinstance(head, (CosineLinear, SplitCosineLinear)):
        raise ConfigurationError(
            f"head is a {type(head).__name__}; expected a CosineLinear or a SplitCosineLinear; "
            "a torch.nn.Linear grows with grow_linear"
        )
    new_classes = positive(new_classes, "new_classes")
    expected = (new_classes, head.in_features)
    if imprint is not None and tuple(imprint.shape) != expected:
        raise ConfigurationError(
            f"imprint has the shape {tuple(imprint.shape)}; expected {expected}: one row for "
            "each new class; make them with imprinted_weights, or leave imprint out"
        )
    old = head.weight.detach()
    grown = SplitCosineLinear(head.in_features, head.out_features, new_classes)
    grown.to(device=old.device, dtype=old.dtype).train(head.training)
    with torch.no_grad():
        grown.sigma.copy_(head.sigma)
        grown.fc1.weight.copy_(old)
        if imprint is not None:
            grown.fc2.weight.copy_(imprint)
    return grown


def grow_linear(head: nn.Linear, new_classes: int) -> nn.Linear:
    """A ``Linear`` with ``new_classes`` more outputs; ``head`` itself is left as it is.

    The first rows are copies of ``head``'s, the others start as in any new ``torch.nn.Linear``.

    >>> grow_linear(nn.Linear(64, 50), 10)
    Linear(in_features=64, out_features=60, bias=True)
    """
    if not isinstance(head, nn.Linear):
        raise ConfigurationError(
            f"head is a {type(head).__name__}; expected a torch.nn.Linear; a cosine head grows "
            "with grow_cosine"
        )
    new_classes = positive(new_classes, "new_classes")
    old = head.out_features
    grown = nn.Linear(
        head.in_features,
        old + new_classes,
        bias=head.bias is not None,
        device=head.weight.device,
        dtype=head.weight.dtype,
    ).train(head.training)
    with torch.no_grad():
        grown.weight[:old] = head.weight
        if head.bias is not None:
            grown.bias[:old] = head.bias
    return grown


def imprinted_weights(
    features: Tensor, targets: MapStyle, classes: MapStyle, norm: Tensor | float
) -> Tensor:
    """First weights for new classes, read off their samples (LUCIR's imprinting).

    The direction of a class's weights is the mean of its L2-normalised ``features``; their length
    is ``norm``, one number, which LUCIR takes as the average over the classes known so far:
    ``head.weight.norm(dim=1).mean()``. Rows come in the order of ``classes``.

    >>> features = torch.tensor([[3.0, 0.0], [0.0, 5.0], [0.0, 1.0]])
    >>> imprinted_weights(features, targets=[7, 8, 8], classes=[8, 7], norm=2.0)
    tensor([[0., 2.],
            [2., 0.]])
    """
    length = torch.as_tensor(norm).detach()
    if length.numel() != 1 or not (length.isfinite() & (length > 0)).all():
        raise ConfigurationError(
            f"norm={norm!r}; expected one positive number; pass head.weight.norm(dim=1).mean()"
        )
    known, means = class_means(features, targets)
    wanted = targets_of(classes)
    rows = {label: row for row, label in enumerate(known.tolist())}
    missing = [label for label in wanted.tolist() if label not in rows]
    if missing:
        raise ConfigurationError(
            f"targets has no sample of {len(missing)} of the {len(wanted)} classes asked for, the "
            f"first is class {missing[0]}; expected at least one sample of each; pass features of "
            "all new classes"
        )
    order = torch.tensor([rows[label] for label in wanted.tolist()], dtype=torch.int64)
    return means[order.to(means.device)] * length.to(means).reshape(())
