"""Classifier heads."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CosineLinear(nn.Module):
    """LUCIR's classifier: cosine similarity of features and class weights, times a learned σ."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.sigma = nn.Parameter(torch.ones(1))
        bound = 1 / math.sqrt(in_features)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, features: Tensor) -> Tensor:
        return self.sigma * F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
