"""iCaRL (Rebuffi et al. 2017), in the softmax form that LUCIR, Mnemonics and AANets compare with.

Herding is `aanets_plugin.herd`. The nearest-mean classifier is in `prediction.py`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.distillation import knowledge_distillation
from aanets_plugin.baselines.heads import CosineMethod
from aanets_plugin.baselines.method import Output, Rule


@dataclasses.dataclass(frozen=True)
class ICaRL(CosineMethod):
    """iCaRL with softmax losses and a cosine head, as in the paper's comparison."""

    name: ClassVar[str] = "icarl"
    predicts_by: ClassVar[Rule] = "nearest_mean"

    temperature: float = 2.0
    beta: float = 0.25

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        logits = None if teacher is None else teacher.logits
        return icarl_loss(out.logits, targets, logits, temperature=self.temperature, beta=self.beta)


def icarl_loss(
    logits: Tensor,
    targets: Tensor,
    teacher_logits: Tensor | None,
    *,
    temperature: float = 2.0,
    beta: float = 0.25,
) -> Tensor:
    """Cross-entropy over all classes plus distillation of the old classes.

        loss = cross-entropy + β · knowledge_distillation(logits, teacher_logits, T)

    The original iCaRL uses sigmoids and binary cross-entropy in both terms.

    Args:
        logits: [batch, classes], the old classes first.
        targets: Class labels, [batch].
        teacher_logits: [batch, old classes]. None without a teacher: the loss is then the
            cross-entropy alone.
        temperature: T.
        beta: β.
    """
    loss = F.cross_entropy(logits, targets)
    if teacher_logits is None:
        return loss
    return loss + beta * knowledge_distillation(logits, teacher_logits, temperature)
