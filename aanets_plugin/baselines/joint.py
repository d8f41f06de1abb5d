"""Joint training: the upper bound that the methods are compared with."""

import dataclasses
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.heads import CosineMethod
from aanets_plugin.baselines.method import Output


@dataclasses.dataclass(frozen=True)
class Joint(CosineMethod):
    """Cross-entropy on all data of all classes seen so far, in every phase."""

    name: ClassVar[str] = "joint"
    title: ClassVar[str] = "joint training"
    keeps_all_data: ClassVar[bool] = True

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        """Return the cross-entropy of a batch."""
        return F.cross_entropy(out.logits, targets)
