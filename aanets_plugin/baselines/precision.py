"""Parts of heads and losses that need full precision when the network runs under autocast."""

import torch
import torch.nn.functional as F
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32; return other types unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def cosines(features: Tensor, weights: Tensor) -> Tensor:
    """Cosines of all pairs of features [batch, dimensions] and weights [count, dimensions].

    Autocast is disabled here: near 1, bfloat16 has steps of 0.004, too coarse to compare classes.
    """
    with torch.autocast(features.device.type, enabled=False):
        kind = torch.promote_types(features.dtype, weights.dtype)
        return F.linear(F.normalize(features.to(kind), dim=1), F.normalize(weights.to(kind), dim=1))
