"""Knowledge distillation between logits."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from aanets_plugin.errors import ConfigurationError


def knowledge_distillation(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float
) -> Tensor:
    """KL divergence of the student from the teacher on the old classes, at temperature T.

    With p = softmax(teacher / T) and q = softmax(student / T), both over the old classes only:

        T² · mean over samples of Σ over old classes of p · (log p - log q)

    No gradient flows into the teacher.

    Args:
        student_logits: [batch, classes], the old classes first.
        teacher_logits: [batch, old classes].
        temperature: T.

    Example:
        >>> import torch
        >>> teacher = torch.tensor([[2.0, 0.0]])
        >>> student = torch.tensor([[2.0, 0.0, 5.0]])
        >>> knowledge_distillation(student, teacher, temperature=2.0)
        tensor(0.)
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigurationError(
            f"temperature={temperature!r}: must be > 0 and finite. iCaRL's is 2.0."
        )
    shapes = student_logits.shape, teacher_logits.shape
    if (
        any(len(shape) != 2 for shape in shapes)
        or len(student_logits) != len(teacher_logits)
        or not 1 <= teacher_logits.shape[1] <= student_logits.shape[1]
    ):
        raise ConfigurationError(
            f"student_logits has the shape {tuple(shapes[0])}, teacher_logits has "
            f"{tuple(shapes[1])}: must be [batch, classes] and [batch, old classes]. Pass the "
            f"logits of both networks for the same batch."
        )
    old = teacher_logits.shape[1]
    student = F.log_softmax(student_logits[:, :old] / temperature, dim=1)
    teacher = F.softmax(teacher_logits.detach() / temperature, dim=1)
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean")
