"""Classifier heads that grow when new classes arrive, and the base class of cosine-head methods.

State of a `CosineLinear`: `weight`, `sigma`. State of a `SplitCosineLinear`: `sigma`, `fc1.weight`
(old classes), `fc2.weight` (new classes).
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.baselines.method import Method
from aanets_plugin.baselines.precision import cosines
from aanets_plugin.baselines.prediction import class_means
from aanets_plugin.checks import check_shapes, positive
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

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments that make such a head."""
        return {"in_features": self.in_features, "out_features": self.out_features}

    def scores(self, features: Tensor) -> Tensor:
        """The unscaled cosines: [batch, out_features]."""
        return cosines(features, self.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores, [batch, classes]."""
        return self.scores(features)

    def extra_repr(self) -> str:
        """Show the numbers of features and classes in `repr`."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class CosineLinear(CosineScores):
    """LUCIR's classifier: cosine similarity of features and class weights, times a learned σ."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.sigma = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, σ times the scores, [batch, classes]."""
        return self.sigma * self.scores(features)


class SplitCosineLinear(nn.Module):
    """A cosine classifier with separate weights for old classes (`fc1`) and new ones (`fc2`).

    Both parts share one σ, and the old classes come first in the output. LUCIR freezes the weights
    of the old classes with `head.fc1.requires_grad_(False)`.

    Examples:
        >>> head = SplitCosineLinear(64, old=50, new=10)
        >>> scores = head.scores(torch.randn(8, 64))
        >>> logits = head.sigma * scores  # the same as head(features)
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

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments that make such a head."""
        old, new = self.fc1.out_features, self.fc2.out_features
        return {"in_features": self.in_features, "old": old, "new": new}

    @property
    def weight(self) -> Tensor:
        """A copy of the weights of all classes, old ones first."""
        return torch.cat([self.fc1.weight, self.fc2.weight])

    def scores(self, features: Tensor) -> Tensor:
        """The unscaled cosines: [batch, old + new]."""
        return torch.cat([self.fc1(features), self.fc2(features)], dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, σ times the scores, [batch, classes]."""
        return self.sigma * self.scores(features)

    def extra_repr(self) -> str:
        """Show the numbers of features and classes in `repr`."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def grow_cosine(
    head: CosineLinear | SplitCosineLinear, new_classes: int, imprint: Tensor | None = None
) -> SplitCosineLinear:
    """Return a head with `new_classes` more outputs. `head` itself does not change.

    All classes of `head` become old classes with copies of their weights, and σ is copied. The
    weights of the new classes are `imprint`, [new_classes, in_features] (see `imprinted_weights`),
    or random. All parameters of the new head require a gradient.

    Examples:
        >>> grow_cosine(CosineLinear(64, 50), 10).weight.shape
        torch.Size([60, 64])
    """
    if not isinstance(head, (CosineLinear, SplitCosineLinear)):
        raise ConfigurationError(
            f"head is a {type(head).__name__}: must be a CosineLinear or a SplitCosineLinear. A "
            f"torch.nn.Linear grows with grow_linear."
        )
    new_classes = positive(new_classes, "new_classes")
    if imprint is not None:
        check_shapes(f"{new_classes} {head.in_features}", imprint=imprint)
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
    """Return a `torch.nn.Linear` with `new_classes` more outputs. `head` itself does not change.

    The first rows are copies of `head`'s; the new rows have torch's default initialization.
    """
    if not isinstance(head, nn.Linear):
        raise ConfigurationError(
            f"head is a {type(head).__name__}: must be a torch.nn.Linear. A cosine head grows with "
            f"grow_cosine."
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
    """Initial weights of new classes from the features of their samples (LUCIR's imprinting).

    There is one row for each of `classes`. It points to the mean of the class's L2-normalized
    features and has the length `norm`; LUCIR uses the average over the old classes,
    `head.weight.norm(dim=1).mean()`.

    Examples:
        >>> features = torch.tensor([[3.0, 0.0], [0.0, 5.0], [0.0, 1.0]])
        >>> imprinted_weights(features, targets=[7, 8, 8], classes=[8, 7], norm=2.0)
        tensor([[0., 2.],
                [2., 0.]])
    """
    length = torch.as_tensor(norm).detach()
    if length.numel() != 1 or not (length.isfinite() & (length > 0)).all():
        raise ConfigurationError(
            f"norm={norm!r}: must be one number > 0. Pass head.weight.norm(dim=1).mean()."
        )
    known, means = class_means(features, targets)
    wanted = targets_of(classes)
    rows = {label: row for row, label in enumerate(known.tolist())}
    missing = [label for label in wanted.tolist() if label not in rows]
    if missing:
        raise ConfigurationError(
            f"targets has no sample of {len(missing)} of the {len(wanted)} classes, the first is "
            f"class {missing[0]}: must have at least one of each. Pass features of all new "
            f"classes."
        )
    order = torch.tensor([rows[label] for label in wanted.tolist()], dtype=torch.int64)
    return means[order.to(means.device)] * length.to(means).reshape(())


@dataclasses.dataclass(frozen=True)
class CosineMethod(Method):
    """Base class of methods with a cosine head.

    If `imprints` is true, the weights of new classes are imprinted and those of old classes are
    frozen. Otherwise the weights of new classes are random, and all weights learn.
    """

    def head(self, in_features: int, classes: int) -> nn.Module:
        """Return a `CosineLinear`."""
        return CosineLinear(in_features, classes)

    def grow(
        self,
        head: nn.Module,
        new: int,
        features: Tensor | None = None,
        targets: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> nn.Module:
        """Return a `SplitCosineLinear` with `new` more classes; see `Method.grow`."""
        assert isinstance(head, (CosineLinear, SplitCosineLinear))
        if not self.imprints:
            return grow_cosine(head, new)
        imprint = None
        if features is not None and targets is not None:
            classes = range(head.out_features, head.out_features + new)
            norm = head.weight.norm(dim=1).mean()
            imprint = imprinted_weights(features, targets, list(classes), norm)
        grown = grow_cosine(head, new, imprint)
        grown.fc1.requires_grad_(False)
        return grown

    def score(self, head: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine similarities, and logits: σ times them."""
        assert isinstance(head, (CosineLinear, SplitCosineLinear))
        scores = head.scores(features)
        return scores, head.sigma * scores
