"""LUCIR's losses, against literal loops over samples and classes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aanets_plugin.baselines import (
    SplitCosineLinear,
    less_forget_loss,
    less_forget_weight,
    lucir_loss,
    margin_ranking_loss,
)
from aanets_plugin.errors import ConfigurationError

OLD, NEW, DIMENSIONS = 4, 3, 5
TARGETS = torch.tensor([0, 5, 3, 6, 1, 3])


@pytest.fixture
def batch() -> dict[str, Tensor]:
    features = torch.randn(6, DIMENSIONS, dtype=torch.float64, requires_grad=True)
    head = SplitCosineLinear(DIMENSIONS, OLD, NEW).double()
    scores = head.scores(features)
    return {
        "logits": 4 * scores,
        "targets": TARGETS,
        "scores": scores,
        "features": features,
        "teacher_features": torch.randn(6, DIMENSIONS, dtype=torch.float64),
    }


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def literal_less_forget(features: Tensor, teacher: Tensor) -> float:
    pairs = zip(features.tolist(), teacher.tolist(), strict=True)
    return sum(1 - cosine(f, t) for f, t in pairs) / len(features)


def literal_ranking(scores: Tensor, targets: Tensor, old: int, k: int, margin: float) -> float:
    terms = []
    for row, target in zip(scores.tolist(), targets.tolist(), strict=True):
        if target < old:
            for rival in sorted(row[old:], reverse=True)[:k]:
                terms.append(max(0.0, margin - row[target] + rival))
    return sum(terms) / len(terms)


def literal_cross_entropy(logits: Tensor, targets: Tensor) -> float:
    total = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        total -= math.log(math.exp(row[target]) / sum(math.exp(value) for value in row))
    return total / len(targets)


def test_less_forget_is_its_equation(batch):
    actual = less_forget_loss(batch["features"], batch["teacher_features"]).item()
    expected = literal_less_forget(batch["features"], batch["teacher_features"])
    assert actual == pytest.approx(expected, rel=1e-10)
    wrong = literal_less_forget(batch["features"], batch["teacher_features"].roll(1, 0))
    assert actual != pytest.approx(wrong, rel=1e-3)


def test_less_forget_sees_directions_only(batch):
    features = batch["features"]
    assert less_forget_loss(features, 3 * features).item() == pytest.approx(0, abs=1e-12)
    assert less_forget_loss(features, -features).item() == pytest.approx(2)


@pytest.mark.parametrize(
    ("old", "new", "weight"), [(50, 10, 5 * math.sqrt(5)), (90, 10, 15.0), (1, 4, 2.5)]
)
def test_the_weight_of_less_forget_grows_with_the_old_classes(old, new, weight):
    assert less_forget_weight(old, new) == pytest.approx(weight)
    assert less_forget_weight(old, new, base=10.0) == pytest.approx(2 * weight)
    assert less_forget_weight(new, old) != pytest.approx(weight)


@pytest.mark.parametrize(("k", "margin"), [(1, 0.5), (2, 0.5), (3, 0.5), (2, 0.1), (2, 2.5)])
def test_margin_ranking_is_its_equation(batch, k, margin):
    arguments = batch["scores"], TARGETS, OLD
    actual = margin_ranking_loss(*arguments, k=k, margin=margin).item()
    assert actual == pytest.approx(literal_ranking(*arguments, k, margin), rel=1e-10)
    assert actual != pytest.approx(literal_ranking(*arguments, k % 3 + 1, margin), rel=1e-3)


def test_margin_ranking_defaults_to_two_rivals_and_a_margin_of_a_half(batch):
    arguments = batch["scores"], TARGETS, OLD
    assert torch.equal(
        margin_ranking_loss(*arguments), margin_ranking_loss(*arguments, k=2, margin=0.5)
    )


def test_samples_of_new_classes_do_not_enter_margin_ranking(batch):
    scores = batch["scores"].detach()
    loss = margin_ranking_loss(scores, TARGETS, OLD)
    is_old = TARGETS < OLD
    # The same sums in another order.
    torch.testing.assert_close(margin_ranking_loss(scores[is_old], TARGETS[is_old], OLD), loss)
    moved = scores.clone()
    moved[~is_old] += torch.rand(int((~is_old).sum()), OLD + NEW, dtype=torch.float64)
    assert torch.equal(margin_ranking_loss(moved, TARGETS, OLD), loss)
    moved[is_old, OLD:] += 0.5
    assert not torch.allclose(margin_ranking_loss(moved, TARGETS, OLD), loss)


def test_margin_ranking_pushes_only_what_is_inside_the_margin():
    scores = torch.tensor(
        [[0.9, 0.0, 0.7, 0.3, -0.5], [0.0, 0.9, -0.8, -0.9, -0.7]], requires_grad=True
    )
    loss = margin_ranking_loss(scores, torch.tensor([0, 1]), old=2)
    # Sample 0: rival 0.7 is inside by 0.3, rival 0.3 is 0.1 outside; sample 1: both are outside.
    assert loss.item() == pytest.approx(0.3 / 4)
    loss.backward()
    quarter = torch.tensor([-0.25, 0, 0.25, 0, 0])
    assert torch.equal(scores.grad, torch.stack([quarter, torch.zeros(5)]))


def test_fewer_new_classes_than_rivals_are_all_taken(batch):
    scores = batch["scores"][:, : OLD + 1]
    targets = TARGETS.clamp_max(OLD)
    loss = margin_ranking_loss(scores, targets, OLD, k=2)
    assert torch.equal(loss, margin_ranking_loss(scores, targets, OLD, k=1))
    assert loss.item() == pytest.approx(literal_ranking(scores, targets, OLD, 2, 0.5))


def test_without_an_old_sample_margin_ranking_is_exactly_zero_and_differentiable(batch):
    scores = batch["scores"].detach().requires_grad_()
    loss = margin_ranking_loss(scores, torch.full((6,), OLD), OLD)
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(scores.grad, torch.zeros_like(scores))
    assert margin_ranking_loss(scores, TARGETS, OLD) > 0


@pytest.mark.parametrize(
    "options", [{}, {"base": 2.0, "k": 1, "margin": 0.3}], ids=["lucir", "own"]
)
def test_lucir_is_the_weighted_sum_of_three_literal_losses(batch, options):
    base, k, margin = (options.get(n, d) for n, d in (("base", 5.0), ("k", 2), ("margin", 0.5)))
    parts = (
        literal_cross_entropy(batch["logits"], TARGETS),
        base
        * math.sqrt(OLD / NEW)
        * literal_less_forget(batch["features"], batch["teacher_features"]),
        literal_ranking(batch["scores"], TARGETS, OLD, k, margin),
    )
    actual = lucir_loss(**batch, old=OLD, **options).item()
    assert actual == pytest.approx(sum(parts), rel=1e-10)
    for left_out in parts:
        assert actual != pytest.approx(sum(parts) - left_out, rel=1e-3)
    doubled = lucir_loss(**batch, old=OLD, ranking_weight=2.0, **options).item()
    assert doubled == pytest.approx(sum(parts) + parts[2], rel=1e-10)


def test_margin_ranking_works_on_the_scores_and_cross_entropy_on_the_logits(batch):
    loss = lucir_loss(**batch, old=OLD)
    swapped = lucir_loss(**{**batch, "scores": batch["logits"]}, old=OLD)
    assert not torch.allclose(loss, swapped)


def test_scores_recovered_from_logits_give_the_same_gradients():
    torch.manual_seed(3)
    head = SplitCosineLinear(DIMENSIONS, OLD, NEW).double()
    with torch.no_grad():
        head.sigma.fill_(4.0)
    features, teacher = torch.randn(2, 6, DIMENSIONS, dtype=torch.float64)
    gradients = []
    for logits, scores in (
        (head.sigma * head.scores(features), head.scores(features)),
        (head(features), head(features) / head.sigma),
    ):
        loss = lucir_loss(
            logits, TARGETS, scores=scores, features=features, teacher_features=teacher, old=OLD
        )
        gradients.append(torch.autograd.grad(loss, list(head.parameters())))
    torch.testing.assert_close(gradients[0], gradients[1])
    assert all(gradient.any() for gradient in gradients[0])


def test_without_a_teacher_lucir_is_cross_entropy(batch):
    cross_entropy = F.cross_entropy(batch["logits"], TARGETS)
    alone = lucir_loss(**{**batch, "teacher_features": None}, old=0)
    assert torch.equal(alone, cross_entropy)
    assert not torch.allclose(lucir_loss(**batch, old=OLD), cross_entropy)


def test_gradients_reach_the_features_and_not_the_teacher(batch):
    batch["teacher_features"].requires_grad_()
    lucir_loss(**batch, old=OLD).backward()
    assert batch["features"].grad.all()
    assert batch["teacher_features"].grad is None


def test_the_gradient_of_lucir_is_the_slope_of_the_loss(batch):
    def loss(scores: Tensor, features: Tensor) -> Tensor:
        inputs = {**batch, "logits": 4 * scores, "scores": scores, "features": features}
        return lucir_loss(**inputs, old=OLD)

    inputs = [batch[name].detach().requires_grad_() for name in ("scores", "features")]
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize(("old", "new"), [(0, 5), (5, 0), (-1, 5)])
def test_a_weight_without_old_or_new_classes_is_refused(old, new):
    with pytest.raises(ConfigurationError, match=f"old={old}, new={new}"):
        less_forget_weight(old, new)


@pytest.mark.parametrize("old", [0, 7, 9])
def test_a_number_of_old_classes_that_leaves_none_on_a_side_is_refused(batch, old):
    with pytest.raises(ConfigurationError, match=f"old={old} of 7 classes"):
        margin_ranking_loss(batch["scores"], TARGETS, old)


def test_no_rivals_are_refused(batch):
    with pytest.raises(ConfigurationError, match="k=0: must be an integer ≥ 1"):
        margin_ranking_loss(batch["scores"], TARGETS, OLD, k=0)


def test_shapes_that_do_not_fit_are_quoted(batch):
    with pytest.raises(ConfigurationError, match=r"scores has the shape \(6, 7\), .* \(5,\)"):
        margin_ranking_loss(batch["scores"], TARGETS[:5], OLD)
    with pytest.raises(ConfigurationError, match=r"features has the shape \(6, 5\), .* \(3, 5\)"):
        less_forget_loss(batch["features"], batch["teacher_features"][:3])
    with pytest.raises(ConfigurationError, match=r"logits has the shape \(6, 7\), .* \(6, 6\)"):
        lucir_loss(**{**batch, "scores": batch["scores"][:, :6]}, old=OLD)
