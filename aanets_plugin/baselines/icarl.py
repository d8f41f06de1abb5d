"""iCaRL (Rebuffi et al. 2017), in the softmax form that LUCIR, Mnemonics and AANets compare with.

Herding is `aanets_plugin.herd`. The nearest-mean classifier is in `prediction.py`.
"""

import dataclasses
import math
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.heads import CosineMethod
from aanets_plugin.baselines.method import Output, Rule
from aanets_plugin.checks import check_shapes
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.field_checks import Positive, PositiveOrZero


@dataclasses.dataclass(frozen=True)
class ICaRL(CosineMethod):
    """iCaRL with softmax losses and a cosine head, as in the paper's comparison.

    With `imprint=True` the head grows as in the authors' code: the weights of new classes are
    imprinted and those of old classes are frozen, as in LUCIR.
    """

    name: ClassVar[str] = "icarl"
    title: ClassVar[str] = "iCaRL"
    predicts_by: ClassVar[Rule] = "nearest_mean"

    temperature: Positive = 2.0
    beta: PositiveOrZero = 0.25
    imprint: bool = False

    @property
    def imprints(self) -> bool:
        """Whether the weights of new classes are imprinted, as in the authors' code."""
        return self.imprint

    def settings(self) -> dict[str, Any]:
        """Return the name and the hyperparameters."""
        settings = super().settings()
        if not self.imprint:
            del settings["imprint"]  # so that runs from before this option can be continued
        return settings

    def loss(self, head: nn.Module, out: Output, targets: Tensor, teacher: Output | None) -> Tensor:
        """Return `icarl_loss` of a batch."""
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
    """Cross-entropy over all classes plus β · `knowledge_distillation` of the old classes.

    `logits` is [batch, classes] with the old classes first, `teacher_logits` is [batch, old]. With
    `teacher_logits=None` the loss is the cross-entropy alone. The original iCaRL uses sigmoids and
    binary cross-entropy in both terms.
    """
    loss = F.cross_entropy(logits, targets)
    if teacher_logits is None:
        return loss
    return loss + beta * knowledge_distillation(logits, teacher_logits, temperature)


def knowledge_distillation(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float
) -> Tensor:
    """KL divergence of the student from the teacher on the old classes, at temperature T.

    With p = softmax(teacher / T) and q = softmax(student / T), both over the old classes only:

        T² · mean over samples of Σ over old classes of p · (log p - log q)

    `student_logits` is [batch, classes] with the old classes first, `teacher_logits` is
    [batch, old]. No gradient flows into the teacher.

    Examples:
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
    shapes = "batch classes, batch old"
    check_shapes(shapes, student_logits=student_logits, teacher_logits=teacher_logits)
    old, classes = teacher_logits.shape[1], student_logits.shape[1]
    if not 1 <= old <= classes:
        raise ConfigurationError(
            f"teacher_logits has {old} columns: must be 1 to {classes}, as many as there are old "
            f"classes."
        )
    student = F.log_softmax(student_logits[:, :old] / temperature, dim=1)
    teacher = F.softmax(teacher_logits.detach() / temperature, dim=1)
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean")
