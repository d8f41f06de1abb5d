"""Distillation and iCaRL's loss, against literal loops over samples and classes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aanets_plugin.baselines import icarl_loss, knowledge_distillation
from aanets_plugin.errors import ConfigurationError

OLD, NEW = 3, 2


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the student, targets, logits of the teacher."""
    logits = 2 * torch.randn(4, OLD + NEW, dtype=torch.float64)
    teacher = 2 * torch.randn(4, OLD, dtype=torch.float64)
    return logits, torch.tensor([0, 4, 2, 3]), teacher


def softmax(row: list[float], temperature: float = 1.0) -> list[float]:
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def divergence_terms(student: Tensor, teacher: Tensor, temperature: float) -> list[float]:
    """p · (log p - log q) for every sample and old class."""
    terms = []
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        q, p = softmax(s[: len(t)], temperature), softmax(t, temperature)
        terms += [a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True)]
    return terms


def literal_cross_entropy(logits: Tensor, targets: Tensor) -> float:
    pairs = zip(logits.tolist(), targets.tolist(), strict=True)
    return sum(-math.log(softmax(row)[target]) for row, target in pairs) / len(targets)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_distillation_is_its_equation(batch, temperature):
    student, _, teacher = batch
    actual = knowledge_distillation(student, teacher, temperature).item()
    expected = sum(divergence_terms(student, teacher, temperature)) / len(student)
    assert actual == pytest.approx(temperature**2 * expected, rel=1e-10)
    other = sum(divergence_terms(student, teacher, 3.0)) / len(student)
    assert actual != pytest.approx(3.0**2 * other, rel=1e-3)


def test_new_classes_do_not_enter_distillation(batch):
    student, _, teacher = batch
    loss = knowledge_distillation(student, teacher, 2.0)
    moved = student.clone()
    moved[:, OLD:] += 10
    assert torch.equal(knowledge_distillation(moved, teacher, 2.0), loss)
    assert torch.equal(knowledge_distillation(student[:, :OLD], teacher, 2.0), loss)
    moved[:, 0] += 10
    assert not torch.allclose(knowledge_distillation(moved, teacher, 2.0), loss)


def test_distillation_is_zero_where_student_and_teacher_agree_up_to_a_shift(batch):
    student, _, teacher = batch
    same = torch.cat([teacher + 3, student[:, OLD:]], dim=1)
    assert knowledge_distillation(same, teacher, 2.0).item() == pytest.approx(0, abs=1e-12)
    assert knowledge_distillation(student, teacher, 2.0) > 0.01


@pytest.mark.parametrize(("temperature", "beta"), [(2.0, 0.25), (4.0, 1.5)])
def test_icarl_is_its_equation(batch, temperature, beta):
    logits, targets, teacher = batch
    terms = divergence_terms(logits, teacher, temperature)
    element_wise_mean = sum(terms) / len(terms)
    assert len(terms) == len(targets) * OLD
    cross_entropy = literal_cross_entropy(logits, targets)
    expected = cross_entropy + beta * temperature**2 * OLD * element_wise_mean
    actual = icarl_loss(logits, targets, teacher, temperature=temperature, beta=beta).item()
    assert actual == pytest.approx(expected, rel=1e-10)
    without_old = cross_entropy + beta * temperature**2 * element_wise_mean
    assert actual != pytest.approx(without_old, rel=1e-3)


def test_icarl_defaults_to_temperature_2_and_beta_a_quarter(batch):
    loss = icarl_loss(*batch)
    assert torch.equal(loss, icarl_loss(*batch, temperature=2.0, beta=0.25))
    assert not torch.allclose(loss, icarl_loss(*batch, temperature=2.5))
    assert not torch.allclose(loss, icarl_loss(*batch, beta=0.3))


def test_without_a_teacher_icarl_is_cross_entropy(batch):
    logits, targets, _ = batch
    assert torch.equal(icarl_loss(logits, targets, None), F.cross_entropy(logits, targets))
    assert not torch.allclose(icarl_loss(*batch), F.cross_entropy(logits, targets))


def test_gradients_reach_the_student_and_not_the_teacher(batch):
    logits, targets, teacher = batch
    logits.requires_grad_()
    teacher.requires_grad_()
    knowledge_distillation(logits, teacher, 2.0).backward()
    assert logits.grad[:, :OLD].all()
    assert not logits.grad[:, OLD:].any()
    logits.grad = None
    icarl_loss(logits, targets, teacher).backward()
    assert logits.grad.all()
    assert teacher.grad is None


def test_the_gradient_of_icarl_is_the_slope_of_the_loss(batch):
    logits, targets, teacher = batch
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: icarl_loss(x, targets, teacher), logits)


def test_half_precision_logits_of_any_size_stay_finite():
    logits = torch.tensor([[6e4, -6e4, 0.0]], dtype=torch.bfloat16)
    assert icarl_loss(logits, torch.tensor([0]), -logits[:, :2]).isfinite()


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf])
def test_a_temperature_that_is_not_positive_is_refused(batch, temperature):
    with pytest.raises(ConfigurationError, match=f"temperature={temperature!r}"):
        icarl_loss(*batch, temperature=temperature)


@pytest.mark.parametrize("shape", [(4, 6), (4, 0), (3, 3), (4,)], ids=str)
def test_a_teacher_that_does_not_fit_the_student_is_refused(batch, shape):
    with pytest.raises(ConfigurationError) as caught:
        knowledge_distillation(batch[0], torch.zeros(shape), 2.0)
    columns = f"teacher_logits has {shape[-1]} columns: must be 1 to 5"
    shapes = f"student_logits has the shape (4, 5), teacher_logits has the shape {shape}: "
    assert str(caught.value).startswith(columns if shape in [(4, 6), (4, 0)] else shapes)
