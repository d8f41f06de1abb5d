"""What heads and losses do in full precision when the network runs in half of it (autocast)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """`x` itself, or in float32 where its type has fewer digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def cosines(features: Tensor, weights: Tensor) -> Tensor:
    """The cosine of every feature `[batch, dimensions]` and every weight `[count, dimensions]`.

    bfloat16 has three digits: near 1, where what is to be told apart lies, cosines would come in
    steps of 0.004, so autocast does not reach the product.
    """
    with torch.autocast(features.device.type, enabled=False):
        kind = torch.promote_types(features.dtype, weights.dtype)
        return F.linear(F.normalize(features.to(kind), dim=1), F.normalize(weights.to(kind), dim=1))
