"""PODNet's classifier: several proxies per class, imprinted with k-means."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.kmeans import kmeans_seeds, lloyd
from aanets_plugin.baselines.precision import cosines
from aanets_plugin.checks import check_shapes, positive
from aanets_plugin.errors import ConfigurationError


class LocalSimilarityClassifier(nn.Module):
    """PODNet's classifier: cosine similarity to several proxies per class.

    The similarity of a class is the sum over its proxies, weighted by their softmax. `forward`
    returns η times the similarities.

    `weights` has one parameter [classes, proxies, in_features] per call of `add_classes`. Adding
    classes does not touch the earlier parameters, so they can be frozen. A list of `classes` makes
    the head after several such calls.
    """

    def __init__(self, in_features: int, classes: int | list[int], proxies: int = 10) -> None:
        super().__init__()
        first, *others = classes if isinstance(classes, list) else [classes]
        self.in_features = positive(in_features, "in_features")
        self.out_features = positive(first, "classes")
        self.proxies = positive(proxies, "proxies")
        self.weights = nn.ParameterList([_random(torch.empty(first, proxies, in_features))])
        self.eta = nn.Parameter(torch.ones(1))
        for count in others:
            self.add_classes(count)

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments that make such a head."""
        classes = [len(weight) for weight in self.weights]
        return {"in_features": self.in_features, "classes": classes, "proxies": self.proxies}

    @property
    def weight(self) -> Tensor:
        """The proxies of all classes, [classes, proxies, in_features]."""
        return torch.cat(list(self.weights))

    def similarities(self, features: Tensor) -> Tensor:
        """ŷ without η, [batch, classes], between -1 and 1."""
        flat = cosines(features, self.weight.flatten(0, 1))
        by_class = flat.reshape(flat.shape[0], -1, self.proxies)
        return (by_class.softmax(dim=2) * by_class).sum(dim=2)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, η times the similarities, [batch, classes]."""
        return self.eta * self.similarities(features)

    def add_classes(self, count: int, weights: Tensor | None = None) -> None:
        """Add `count` classes in place, with `weights` as their proxies (default: random)."""
        shape = (positive(count, "count"), self.proxies, self.in_features)
        like: Tensor = self.weights[0]
        if weights is None:
            new = _random(like.new_empty(shape))
        else:
            check_shapes(" ".join(map(str, shape)), weights=weights)
            new = weights.detach().to(like.device, like.dtype, copy=True)
        self.weights.append(nn.Parameter(new))
        self.out_features += count

    def imprint(
        self,
        features: Tensor,
        targets: Tensor,
        classes: Sequence[int],
        generator: torch.Generator | None = None,
    ) -> None:
        """Add `classes` in place, with k-means centres of their features as proxies.

        The centres are scaled to the average norm of the existing proxies.
        """
        norm = float(self.weight.detach().norm(dim=2).mean())
        centres = kmeans_proxies(features, targets, classes, self.proxies, generator, norm=norm)
        self.add_classes(len(classes), centres)

    def extra_repr(self) -> str:
        """Show the numbers of features, classes and proxies in `repr`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"proxies={self.proxies}"
        )


def kmeans_proxies(
    features: Tensor,
    targets: Tensor,
    classes: Sequence[int],
    proxies: int,
    generator: torch.Generator | None = None,
    *,
    norm: float = 1.0,
    iterations: int = 100,
) -> Tensor:
    """k-means centres of the L2-normalized features of each class: [classes, proxies, dimensions].

    A class with fewer samples than proxies uses its samples as centres and repeats them with a
    little noise, so that equal proxies can learn different weights. The result is multiplied by
    `norm`, the average norm of the weights that it joins. k-means runs in float64 on the CPU.
    """
    check_shapes("samples dimensions, samples", features=features, targets=targets)
    proxies = positive(proxies, "proxies")
    points = F.normalize(features.detach().to("cpu", torch.float64), dim=1)
    labels = targets.detach().cpu()
    centres = []
    for label in classes:
        own = points[labels == label]
        if not len(own):
            raise ConfigurationError(
                f"class {label} has no features: targets must have samples of each of the classes "
                f"{list(classes)}."
            )
        if len(own) < proxies:
            centres.append(_repeated(own, proxies, generator))
        else:
            centres.append(lloyd(own, kmeans_seeds(own, proxies, generator), iterations))
    return norm * torch.stack(centres).to(features)


def _repeated(points: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """`count` points: the given ones, then repetitions with noise of norm 0.01 or so."""
    rows = points[torch.arange(count) % len(points)]
    device = "cpu" if generator is None else generator.device
    noise = torch.randn(rows.shape, generator=generator, device=device, dtype=rows.dtype).cpu()
    noise *= 0.01 / math.sqrt(points.shape[1])
    noise[: len(points)] = 0
    return rows + noise


def _random(proxies: Tensor) -> Tensor:
    bound = 1 / math.sqrt(proxies.shape[-1])
    return nn.init.uniform_(proxies, -bound, bound)
