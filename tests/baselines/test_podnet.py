"""PODNet's losses, each against its equation written out in loops over plain numbers."""

from __future__ import annotations

import math

import pytest
import torch

from aanets_plugin.baselines.podnet import (
    nca_loss,
    pod_flat,
    pod_scale,
    pod_spatial,
    podnet_loss,
    proxy_nca_loss,
)
from aanets_plugin.errors import ConfigurationError

TOLERANCE = 1e-12  # a few hundred float64 additions


def maps_of(seed, shapes=((3, 2, 4, 5), (3, 4, 2, 3))):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def literal_vector(sample):
    """[channels][height][width] to the unit vector of sums of squares, widths first."""
    channels, height, width = range(len(sample)), range(len(sample[0])), range(len(sample[0][0]))
    vector = [sum(sample[c][h][w] ** 2 for w in width) for c in channels for h in height]
    vector += [sum(sample[c][h][w] ** 2 for h in height) for c in channels for w in width]
    length = math.sqrt(sum(v * v for v in vector))
    return [v / length for v in vector]


def literal_pod_spatial(maps, teacher_maps):
    stages = []
    for own, teacher in zip(maps, teacher_maps, strict=True):
        distances = []
        for a, b in zip(own.tolist(), teacher.tolist(), strict=True):
            pairs = zip(literal_vector(a), literal_vector(b), strict=True)
            distances.append(math.sqrt(sum((p - q) ** 2 for p, q in pairs)))
        stages.append(sum(distances) / len(distances))
    return sum(stages) / len(stages)


def literal_nca(similarities, targets, scale, margin, hinge=True):
    losses = []
    for row, y in zip(similarities.tolist(), targets.tolist(), strict=True):
        numerator = math.exp(scale * (row[y] - margin))
        denominator = sum(math.exp(scale * s) for i, s in enumerate(row) if i != y)
        loss = -math.log(numerator / denominator)
        losses.append(max(loss, 0.0) if hinge else loss)
    return sum(losses) / len(losses)


def literal_proxy_nca(similarities, targets, scale):
    losses = []
    for row, y in zip(similarities.tolist(), targets.tolist(), strict=True):
        top = max(scale * value for value in row)
        others = sum(math.exp(scale * v - top) for i, v in enumerate(row) if i != y)
        losses.append(math.log(1 + others) - (scale * row[y] - top))
    return sum(losses) / len(losses)


def similarities_of(batch=6, classes=4):
    generator = torch.Generator().manual_seed(3)
    similarities = torch.rand((batch, classes), generator=generator, dtype=torch.float64) * 2 - 1
    similarities[0] = torch.tensor([0.9, -0.9, -0.8, -0.7], dtype=torch.float64)
    return similarities, torch.tensor([0, 1, 2, 3, 1, 0])


def test_pod_spatial_is_its_equation():
    own, teacher = maps_of(0), maps_of(1)
    assert pod_spatial(own, teacher).item() == pytest.approx(
        literal_pod_spatial(own, teacher), abs=TOLERANCE
    )


def test_pod_spatial_is_not_the_equation_of_other_maps():
    own, teacher = maps_of(0), maps_of(1)
    other = literal_pod_spatial(own, maps_of(2))
    assert pod_spatial(own, teacher).item() != pytest.approx(other, abs=1e-3)


def test_pod_spatial_sees_where_an_activation_is_and_not_its_sign():
    own = [torch.zeros(1, 1, 3, 3)]
    own[0][0, 0, 0, 0] = 2.0
    assert pod_spatial(own, [-own[0]]).item() == 0
    assert pod_spatial(own, [own[0] * 5]).item() == pytest.approx(0, abs=1e-6)  # length one
    # Nothing in common: unit vectors at a right angle, the largest distance there is.
    assert pod_spatial(own, [own[0].flip(2, 3)]).item() == pytest.approx(math.sqrt(2))


def test_pod_spatial_pools_over_width_and_height_but_not_over_both():
    """Rows swapped with columns: the same total, the same channels, another place."""
    row, column = torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 3)
    row[0, 0, 1, :] = 1.0
    column[0, 0, :, 1] = 1.0
    assert pod_spatial([row], [column]).item() > 0.5


def test_pod_spatial_of_a_fresh_copy_is_zero_with_a_finite_gradient():
    own = [m.requires_grad_() for m in maps_of(0)]
    loss = pod_spatial(own, [m.detach().clone() for m in own])
    loss.backward()
    assert loss.item() == 0
    assert all(torch.isfinite(m.grad).all() for m in own)


def test_pod_flat_is_its_equation():
    features, teacher = torch.randn(2, 5, 3, dtype=torch.float64)
    expected = 0.0
    for a, b in zip(features.tolist(), teacher.tolist(), strict=True):
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        expected += (1 - dot / (math.hypot(*a) * math.hypot(*b))) / 5
    assert pod_flat(features, teacher).item() == pytest.approx(expected, abs=TOLERANCE)
    assert pod_flat(features, teacher.flip(0)).item() != pytest.approx(expected, abs=1e-3)
    ones = torch.ones(5, dtype=torch.float64)
    embedding = torch.nn.functional.cosine_embedding_loss(features, teacher, ones)
    assert pod_flat(features, teacher).item() == pytest.approx(embedding.item(), abs=1e-9)


@pytest.mark.parametrize("scale", [1.0, 7.5])
@pytest.mark.parametrize("hinge", [True, False])
def test_nca_is_its_equation(scale, hinge):
    similarities, targets = similarities_of()
    loss = nca_loss(similarities, targets, scale, margin=0.6, hinge=hinge).item()
    expected = literal_nca(similarities, targets, scale, 0.6, hinge)
    assert loss == pytest.approx(expected, abs=TOLERANCE)
    assert loss != pytest.approx(literal_nca(similarities, targets, scale, 0.0, hinge), abs=1e-3)


def test_nca_with_the_hinge_is_zero_only_beyond_the_margin():
    similarities = torch.tensor([[0.9, -0.9]])
    targets = torch.tensor([0])
    assert nca_loss(similarities, targets, 10.0, margin=1.7).item() == 0
    assert nca_loss(similarities, targets, 10.0, margin=1.7, hinge=False).item() < 0
    assert nca_loss(similarities, targets, 10.0, margin=1.9).item() == pytest.approx(1.0)


def test_nca_stays_finite_where_exp_would_overflow():
    similarities, targets = similarities_of()
    assert torch.isfinite(nca_loss(similarities.float(), targets, 1e4))


def test_nca_teaches_the_similarities_and_the_scale():
    similarities, targets = similarities_of()
    similarities.requires_grad_()
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    nca_loss(similarities, targets, scale).backward()
    own = similarities.grad.gather(1, targets.unsqueeze(1))
    assert (own <= 0).all()
    assert (own < 0).any()
    assert scale.grad.abs().item() > 0


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_proxy_nca_is_the_equation_of_the_authors_code(scale):
    similarities, targets = similarities_of()
    loss = proxy_nca_loss(similarities, targets, scale).item()
    assert loss == pytest.approx(literal_proxy_nca(similarities, targets, scale), abs=TOLERANCE)
    assert loss != pytest.approx(literal_nca(similarities, targets, scale, 0.6), abs=1e-3)


def test_proxy_nca_is_cross_entropy_where_the_true_class_scores_highest():
    similarities = torch.tensor([[0.9, 0.1, -0.3]], dtype=torch.float64, requires_grad=True)
    loss = proxy_nca_loss(similarities, torch.tensor([0]), 4.0)
    expected = torch.nn.functional.cross_entropy(4.0 * similarities, torch.tensor([0]))
    assert loss.item() == pytest.approx(expected.item(), abs=TOLERANCE)
    gradients = [torch.autograd.grad(value, similarities)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients)

    wrong = proxy_nca_loss(similarities, torch.tensor([1]), 4.0)
    assert wrong > torch.nn.functional.cross_entropy(4.0 * similarities, torch.tensor([1]))


@pytest.mark.parametrize(("loss_fn", "sign"), [(proxy_nca_loss, 1), (nca_loss, -1)])
def test_a_learned_scale_keeps_its_sign_by_the_authors_code_and_not_by_the_paper(loss_fn, sign):
    similarities = torch.tensor([[0.3, 0.2, 0.1]], dtype=torch.float64)
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        (slope,) = torch.autograd.grad(loss_fn(similarities, torch.tensor([0]), scale), scale)
        scale = (scale - 0.1 * slope).detach().requires_grad_()
    assert scale.item() * sign > 0


def test_scale_is_the_root_of_seen_over_new():
    assert pod_scale(seen=60, new=15) == 2.0
    assert pod_scale(seen=50, new=50) == 1.0


def everything():
    similarities, targets = similarities_of()
    features, teacher_features = torch.randn(2, 6, 3, dtype=torch.float64)
    return {
        "similarities": similarities,
        "targets": targets,
        "features": features,
        "teacher_features": teacher_features,
        "maps": maps_of(0, ((6, 2, 3, 3),)),
        "teacher_maps": maps_of(1, ((6, 2, 3, 3),)),
    }


def test_the_loss_is_nca_and_three_spatial_and_one_flat_under_the_scale():
    given = everything()
    nca = literal_proxy_nca(given["similarities"], given["targets"], 2.0)
    spatial = literal_pod_spatial(given["maps"], given["teacher_maps"])
    flat = pod_flat(given["features"], given["teacher_features"]).item()
    loss = podnet_loss(**given, scale=2.0, seen=40, new=10).item()
    assert loss == pytest.approx(nca + 2 * (3 * spatial + flat), abs=TOLERANCE)
    assert loss != pytest.approx(nca + (3 * spatial + flat), abs=1e-3)


def test_without_a_teacher_the_loss_is_nca():
    similarities, targets = similarities_of()
    loss = podnet_loss(similarities, targets, scale=2.0, seen=4, new=4)
    expected = literal_proxy_nca(similarities, targets, 2.0)
    assert loss.item() == pytest.approx(expected, abs=TOLERANCE)


def test_the_loss_teaches_the_student_and_never_the_teacher():
    given = everything()
    student = [given["similarities"], given["features"], *given["maps"]]
    teacher = [given["teacher_features"], *given["teacher_maps"]]
    for tensor in [*student, *teacher]:
        tensor.requires_grad_()
    podnet_loss(**given, scale=1.0, seen=40, new=10).backward()
    assert all(tensor.grad.abs().sum() > 0 for tensor in student)
    assert all(tensor.grad is None for tensor in teacher)


def test_a_teacher_with_other_stages_is_refused():
    with pytest.raises(ConfigurationError, match="2 maps and 1 of the teacher"):
        pod_spatial(maps_of(0), maps_of(1)[:1])
    with pytest.raises(ConfigurationError, match="0 maps and 0"):
        pod_spatial([], [])
    with pytest.raises(ConfigurationError, match=r"maps\[1\].*\(3, 4, 2, 3\).*\(3, 4, 3, 2\)"):
        pod_spatial(maps_of(0), [maps_of(1)[0], maps_of(1)[1].transpose(2, 3)])
    with pytest.raises(ConfigurationError, match=r"\(2, 3\)"):
        pod_spatial([torch.ones(2, 3)], [torch.ones(2, 3)])
    with pytest.raises(ConfigurationError, match=r"\(2, 3\).*\(2, 4\)"):
        pod_flat(torch.ones(2, 3), torch.ones(2, 4))


def test_class_counts_that_cannot_be_are_refused():
    for seen, new in ((5, 0), (5, 6), (0, 0)):
        with pytest.raises(ConfigurationError, match=f"seen={seen} and new={new}"):
            pod_scale(seen, new)


def test_labels_without_a_column_are_refused():
    similarities, targets = similarities_of()
    with pytest.raises(ConfigurationError, match=r"from 0 to 4.*0 to 3"):
        nca_loss(similarities, targets.clone().index_fill_(0, torch.tensor([3]), 4), 1.0)
    with pytest.raises(ConfigurationError, match=r"\(6, 4\).*\(5,\)"):
        nca_loss(similarities, targets[:5], 1.0)
    with pytest.raises(ConfigurationError, match="at least two classes"):
        nca_loss(similarities[:, :1], torch.zeros(6, dtype=torch.long), 1.0)


def test_half_a_teacher_is_refused():
    given = everything()
    given["teacher_maps"] = None
    with pytest.raises(ConfigurationError, match="must be all or none"):
        podnet_loss(**given, scale=1.0, seen=4, new=2)
