"""iCaRL's loss, in the softmax form that LUCIR, Mnemonics and AANets compare with.

Herding is :func:`aanets_plugin.herd`, the classifier is in ``nearest_mean.py``.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from aanets_plugin.baselines.distillation import knowledge_distillation


def icarl_loss(
    logits: Tensor,
    targets: Tensor,
    teacher_logits: Tensor | None,
    *,
    temperature: float = 2.0,
    beta: float = 0.25,
) -> Tensor:
    """Cross-entropy over all classes, plus distillation of the old ones.

    With N samples, O old classes, p and q the softmax at temperature T of the teacher's and the
    student's old logits:

        cross-entropy + β · T² · O · (1 / (N · O)) · Σ over samples and old classes of
        p · (log p - log q)

    that is, the element-wise mean of the divergence, times O: β times
    :func:`knowledge_distillation`. The original iCaRL has sigmoids and binary cross-entropy in both
    places. ``logits`` is [batch, classes], ``teacher_logits`` [batch, old], the old classes first;
    ``None`` where there is no teacher yet, and the loss is the cross-entropy.
    """
    loss = F.cross_entropy(logits, targets)
    if teacher_logits is None:
        return loss
    return loss + beta * knowledge_distillation(logits, teacher_logits, temperature)
