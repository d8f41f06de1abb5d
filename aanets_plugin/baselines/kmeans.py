"""k-means clustering."""

import torch
from torch import Tensor


def kmeans_seeds(points: Tensor, k: int, generator: torch.Generator | None = None) -> Tensor:
    """Choose `k` samples as initial centres by k-means++.

    The next one is drawn with a probability proportional to its squared distance from those chosen
    before.
    """
    chosen = [_draw(points.new_ones(len(points)), generator)]
    distances = (points - points[chosen[0]]).square().sum(dim=1)
    for _ in range(1, k):
        # If every sample is a centre already, all distances are zero: draw any sample.
        weights = distances if distances.sum() > 0 else torch.ones_like(distances)
        chosen.append(_draw(weights, generator))
        distances = distances.minimum((points - points[chosen[-1]]).square().sum(dim=1))
    return points[chosen]


def lloyd(points: Tensor, centres: Tensor, iterations: int = 100) -> Tensor:
    """Run Lloyd's algorithm from `centres` until the assignment of samples no longer changes.

    A centre without samples does not move.
    """
    assigned: Tensor | None = None
    for _ in range(iterations):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        if assigned is not None and torch.equal(nearest, assigned):
            break
        assigned = nearest
        counts = torch.bincount(nearest, minlength=len(centres)).unsqueeze(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return centres


def _draw(weights: Tensor, generator: torch.Generator | None) -> int:
    device = "cpu" if generator is None else generator.device
    return int(torch.multinomial(weights.to(device), 1, generator=generator))
