"""PODNet's classifier: several proxies per class, and their imprinting by k-means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.precision import cosines
from aanets_plugin.errors import ConfigurationError


class LocalSimilarityClassifier(nn.Module):
    """Cosine similarity to `proxies` vectors per class, summed with their softmax as weights.

    `forward` gives η times the similarities; the NCA loss takes `similarities(features)` and `eta`
    apart, since its margin comes before η. Each call of `add_classes` is one more parameter
    `[classes, proxies, in_features]` in `weights` and leaves the others as they are, objects
    included: an optimizer can hold the old proxies at another learning rate (PODNet: 0).
    """

    def __init__(self, in_features: int, classes: int, proxies: int = 10) -> None:
        super().__init__()
        if min(in_features, classes, proxies) < 1:
            raise ConfigurationError(
                f"in_features={in_features}, classes={classes}, proxies={proxies}; expected at "
                f"least 1 of each"
            )
        self.in_features = in_features
        self.out_features = classes
        self.proxies = proxies
        self.weights = nn.ParameterList([_random(torch.empty(classes, proxies, in_features))])
        self.eta = nn.Parameter(torch.ones(1))

    @property
    def weight(self) -> Tensor:
        """The proxies of all classes, `[classes, proxies, in_features]`."""
        return torch.cat(list(self.weights))

    def similarities(self, features: Tensor) -> Tensor:
        """ŷ of `[batch, in_features]`: `[batch, classes]`, between -1 and 1."""
        flat = cosines(features, self.weight.flatten(0, 1))
        by_class = flat.reshape(len(features), -1, self.proxies)
        return (by_class.softmax(dim=2) * by_class).sum(dim=2)

    def forward(self, features: Tensor) -> Tensor:
        return self.eta * self.similarities(features)

    def add_classes(self, count: int, weights: Tensor | None = None) -> None:
        """Grow by `count` classes in place. Their proxies are `weights`, or random."""
        if count < 1:
            raise ConfigurationError(f"count={count}; expected at least 1 new class")
        like: Tensor = self.weights[0]
        shape = (count, self.proxies, self.in_features)
        if weights is None:
            new = _random(like.new_empty(shape))
        elif tuple(weights.shape) != shape:
            raise ConfigurationError(
                f"weights has the shape {tuple(weights.shape)}; expected {shape}, that is [new "
                f"classes, proxies, features]"
            )
        else:
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
        """Grow by `classes`, in that order, with proxies that their features have (k-means), as
        long as the proxies so far are on average."""
        norm = float(self.weight.detach().norm(dim=2).mean())
        centres = kmeans_proxies(features, targets, classes, self.proxies, generator, norm=norm)
        self.add_classes(len(classes), centres)

    def extra_repr(self) -> str:
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
    """`[classes, proxies, dimensions]`: k-means centres of each class's normalised features.

    The centres are multiplied by `norm`, the average norm of the weights they join. A class with
    fewer samples than proxies has each sample as a centre, and again, turned a little at random so
    that equal proxies can learn apart. The arithmetic is float64 on the CPU.
    """
    if features.dim() != 2 or targets.shape != features.shape[:1]:
        raise ConfigurationError(
            f"features has the shape {tuple(features.shape)} and targets {tuple(targets.shape)}; "
            f"expected [samples, dimensions] and [samples]"
        )
    if proxies < 1 or not len(classes):
        raise ConfigurationError(
            f"proxies={proxies} and {len(classes)} classes; expected at least 1 of each"
        )
    points = F.normalize(features.detach().to("cpu", torch.float64), dim=1)
    labels = targets.detach().cpu()
    centres = []
    for label in classes:
        own = points[labels == label]
        if not len(own):
            raise ConfigurationError(
                f"class {label} has no features; expected samples of each of the classes "
                f"{list(classes)} among the targets"
            )
        if len(own) < proxies:
            centres.append(_repeated(own, proxies, generator))
        else:
            centres.append(lloyd(own, kmeans_seeds(own, proxies, generator), iterations))
    return norm * torch.stack(centres).to(features)


def kmeans_seeds(points: Tensor, k: int, generator: torch.Generator | None = None) -> Tensor:
    """k-means++: each next centre is a sample, drawn by its squared distance to those before."""
    chosen = [_draw(points.new_ones(len(points)), generator)]
    distances = (points - points[chosen[0]]).square().sum(dim=1)
    for _ in range(1, k):
        # All zero when every sample is a centre already: then any sample.
        weights = distances if distances.sum() > 0 else torch.ones_like(distances)
        chosen.append(_draw(weights, generator))
        distances = distances.minimum((points - points[chosen[-1]]).square().sum(dim=1))
    return points[chosen]


def lloyd(points: Tensor, centres: Tensor, iterations: int = 100) -> Tensor:
    """Lloyd's k-means from given centres: to the nearest centre, then to the mean, until no sample
    changes sides. A centre that no sample is nearest to stays where it is."""
    sides: Tensor | None = None
    for _ in range(iterations):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        if sides is not None and torch.equal(nearest, sides):
            break
        sides = nearest
        counts = torch.bincount(nearest, minlength=len(centres)).unsqueeze(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return centres


def _repeated(points: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """The points over and over, moved by about a hundredth from the second time on."""
    rows = points[torch.arange(count) % len(points)]
    noise = _randn(rows, generator) * (0.01 / math.sqrt(points.shape[1]))
    noise[: len(points)] = 0
    return rows + noise


def _randn(like: Tensor, generator: torch.Generator | None) -> Tensor:
    device = "cpu" if generator is None else generator.device
    return torch.randn(like.shape, generator=generator, device=device, dtype=like.dtype).cpu()


def _draw(weights: Tensor, generator: torch.Generator | None) -> int:
    device = "cpu" if generator is None else generator.device
    return int(torch.multinomial(weights.to(device), 1, generator=generator))


def _random(proxies: Tensor) -> Tensor:
    bound = 1 / math.sqrt(proxies.shape[-1])
    return nn.init.uniform_(proxies, -bound, bound)
