"""Cosine heads, how they grow, and LUCIR's imprinting, against literal loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from aanets_plugin.baselines import (
    CosineLinear,
    SplitCosineLinear,
    grow_cosine,
    grow_linear,
    imprinted_weights,
)
from aanets_plugin.errors import ConfigurationError

SIGMA = 3.5


def cosine(a: Tensor, b: Tensor) -> float:
    dot = sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
    return dot / math.hypot(*a.tolist()) / math.hypot(*b.tolist())


def cosine_table(features: Tensor, weight: Tensor) -> Tensor:
    rows = [[cosine(f.detach(), w.detach()) for w in weight] for f in features]
    return torch.tensor(rows, dtype=torch.float64)


def with_sigma(head):
    """In float64, with a σ that is not one."""
    head = head.double()
    with torch.no_grad():
        head.sigma.fill_(SIGMA)
    return head


@pytest.fixture
def features() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64)


@pytest.mark.parametrize(
    "make", [lambda: CosineLinear(5, 7), lambda: SplitCosineLinear(5, 4, 3)], ids=["whole", "split"]
)
def test_a_cosine_head_gives_sigma_times_the_cosines(make, features):
    head = with_sigma(make())
    expected = cosine_table(features, head.weight)
    torch.testing.assert_close(head.scores(features), expected)
    torch.testing.assert_close(head(features), SIGMA * expected)
    assert not torch.allclose(head(features), expected)
    assert torch.equal(head(features), head.sigma * head.scores(features))


def test_a_split_head_is_the_whole_head_with_the_same_weights(features):
    split, whole = with_sigma(SplitCosineLinear(5, 4, 3)), with_sigma(CosineLinear(5, 7))
    assert not torch.allclose(split(features), whole(features))
    with torch.no_grad():
        whole.weight.copy_(split.weight)
    torch.testing.assert_close(split(features), whole(features))


def test_the_old_classes_come_first(features):
    head = with_sigma(SplitCosineLinear(5, 4, 3))
    before = head(features)
    with torch.no_grad():
        head.fc2.weight.neg_()
    after = head(features)
    assert torch.equal(after[:, :4], before[:, :4])
    assert torch.equal(after[:, 4:], -before[:, 4:])


def test_the_length_of_features_and_weights_does_not_count(features):
    head = with_sigma(SplitCosineLinear(5, 4, 3))
    before = head(features)
    with torch.no_grad():
        head.fc1.weight.mul_(10)
    torch.testing.assert_close(head(7 * features), before)
    assert not torch.allclose(head(features + 1), before)


def test_the_state_of_the_heads_is_what_the_header_says():
    assert list(CosineLinear(5, 7).state_dict()) == ["weight", "sigma"]
    assert list(SplitCosineLinear(5, 4, 3).state_dict()) == ["sigma", "fc1.weight", "fc2.weight"]


def test_every_parameter_of_a_split_head_gets_a_gradient(features):
    head = with_sigma(SplitCosineLinear(5, 4, 3))
    head(features).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def test_fixed_old_weights_do_not_learn(features):
    head = with_sigma(SplitCosineLinear(5, 4, 3))
    head.fc1.requires_grad_(False)
    head(features).square().sum().backward()
    assert head.fc1.weight.grad is None
    assert head.fc2.weight.grad is not None


@pytest.mark.parametrize(
    "make", [lambda: CosineLinear(5, 4), lambda: SplitCosineLinear(5, 3, 1)], ids=["whole", "split"]
)
def test_growing_keeps_what_the_old_classes_score(make, features):
    head = with_sigma(make())
    grown = grow_cosine(head, 2)
    assert (grown.in_features, grown.out_features) == (5, 6)
    torch.testing.assert_close(grown(features)[:, :4], head(features))
    assert not torch.allclose(grown(features)[:, 2:], head(features))
    assert torch.equal(grown.sigma, head.sigma)
    assert len(grown.fc2.weight.unique()) == 10  # random, not copied


def test_a_head_grows_again_and_again(features):
    head = with_sigma(CosineLinear(5, 2))
    first = head(features)
    for _ in range(3):
        head = grow_cosine(head, 2)
    assert (head.fc1.out_features, head.fc2.out_features) == (6, 2)
    torch.testing.assert_close(head(features)[:, :2], first)


def test_a_grown_head_shares_nothing_with_the_one_it_came_from():
    head = CosineLinear(5, 4)
    before = head.weight.detach().clone()
    grown = grow_cosine(head, 2)
    with torch.no_grad():
        for parameter in grown.parameters():
            parameter.zero_()
    assert torch.equal(head.weight, before)
    assert head.sigma.item() == 1


def test_imprinted_rows_become_the_new_weights():
    imprint = torch.randn(2, 5)
    head = CosineLinear(5, 4)
    assert torch.equal(grow_cosine(head, 2, imprint).fc2.weight, imprint)
    assert not torch.equal(grow_cosine(head, 2).fc2.weight, imprint)


@pytest.mark.parametrize("training", [True, False])
def test_growing_keeps_precision_mode_and_lets_everything_learn(training):
    head = CosineLinear(5, 4).to(torch.bfloat16).train(training).requires_grad_(False)
    linear = nn.Linear(5, 4).to(torch.bfloat16).train(training).requires_grad_(False)
    for grown in (grow_cosine(head, 2), grow_linear(linear, 2)):
        assert {p.dtype for p in grown.parameters()} == {torch.bfloat16}
        assert grown.training is training
        assert all(p.requires_grad for p in grown.parameters())


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_head_grows_by_rows(bias):
    head = nn.Linear(5, 4, bias=bias)
    grown = grow_linear(head, 3)
    assert torch.equal(grown.weight[:4], head.weight)
    assert not torch.equal(grown.weight[3:], head.weight)
    assert (grown.bias is not None) is bias
    if bias:
        assert torch.equal(grown.bias[:4], head.bias)


def test_new_linear_rows_start_as_in_any_new_linear():
    head = nn.Linear(5, 4)
    torch.manual_seed(7)
    grown = grow_linear(head, 3)
    torch.manual_seed(7)
    fresh = nn.Linear(5, 7)
    assert torch.equal(grown.weight[4:], fresh.weight[4:])
    assert torch.equal(grown.bias[4:], fresh.bias[4:])
    assert not torch.equal(grown.weight[:4], fresh.weight[:4])


def literal_imprint(features: Tensor, targets: list[int], classes: list[int], norm: float):
    rows = []
    for label in classes:
        total = [0.0] * features.shape[1]
        for feature, target in zip(features.tolist(), targets, strict=True):
            if target == label:
                length = math.hypot(*feature)
                total = [t + f / length for t, f in zip(total, feature, strict=True)]
        mean = [t / targets.count(label) for t in total]
        rows.append([norm * m / math.hypot(*mean) for m in mean])
    return torch.tensor(rows, dtype=torch.float64)


def test_imprinting_is_the_normalised_mean_of_normalised_features(features):
    features = features * torch.arange(1, 7).unsqueeze(1)  # lengths that must not count
    targets, classes = [9, 4, 9, 4, 4, 2], [9, 4]
    weights = imprinted_weights(features, targets, classes, 1.7)
    torch.testing.assert_close(weights, literal_imprint(features, targets, classes, 1.7))
    unnormalised = torch.stack([features[[0, 2]].mean(0), features[[1, 3, 4]].mean(0)])
    unnormalised = 1.7 * unnormalised / unnormalised.norm(dim=1, keepdim=True)
    assert not torch.allclose(weights, unnormalised)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_the_norm_may_be_a_tensor_and_is_the_length_of_every_row(features, shape):
    norm = torch.full(shape, 2.5)
    weights = imprinted_weights(features, torch.arange(6), range(6), norm)
    torch.testing.assert_close(weights.norm(dim=1), torch.full((6,), 2.5, dtype=torch.float64))


def test_imprinting_makes_no_graph(features):
    head = CosineLinear(5, 4)
    norm = head.weight.norm(dim=1).mean()
    assert not imprinted_weights(features.requires_grad_(), range(6), [1], norm).requires_grad


def test_an_imprinted_head_recognises_the_samples_it_was_imprinted_with():
    features = torch.eye(5).repeat(2, 1) + 0.05 * torch.randn(10, 5)
    targets = torch.arange(5).repeat(2) + 3
    head = CosineLinear(5, 3)
    norm = head.weight.norm(dim=1).mean()
    grown = grow_cosine(head, 5, imprinted_weights(features, targets, range(3, 8), norm))
    assert torch.equal(grown.fc2(features).argmax(1) + 3, targets)
    torch.testing.assert_close(grown.fc2.weight.norm(dim=1), norm.detach().expand(5))


@pytest.mark.parametrize("count", [0, -2, 1.5, True, "3"])
def test_a_number_of_classes_is_an_integer_of_at_least_one(count):
    for call in (
        lambda: grow_cosine(CosineLinear(5, 4), count),
        lambda: grow_linear(nn.Linear(5, 4), count),
    ):
        with pytest.raises(ConfigurationError, match=f"new_classes={count!r}"):
            call()
    with pytest.raises(ConfigurationError, match=f"old={count!r}"):
        SplitCosineLinear(5, count, 3)
    with pytest.raises(ConfigurationError, match=f"new={count!r}"):
        SplitCosineLinear(5, 3, count)


def test_each_kind_of_head_is_sent_to_its_own_function():
    with pytest.raises(ConfigurationError, match=r"head is a Linear.*grow_linear"):
        grow_cosine(nn.Linear(5, 4), 2)
    with pytest.raises(ConfigurationError, match=r"head is a CosineLinear.*grow_cosine"):
        grow_linear(CosineLinear(5, 4), 2)


@pytest.mark.parametrize("shape", [(3, 5), (2, 4), (10,)], ids=str)
def test_imprint_of_the_wrong_shape_is_refused(shape):
    with pytest.raises(ConfigurationError, match=r"imprint has the shape .*must be \[2, 5\]"):
        grow_cosine(CosineLinear(5, 4), 2, torch.zeros(shape))


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, torch.ones(2)], ids=str)
def test_a_norm_that_is_not_one_positive_number_is_refused(features, norm):
    with pytest.raises(ConfigurationError, match=r"norm=.*must be one number > 0"):
        imprinted_weights(features, range(6), [0], norm)


def test_a_class_without_samples_is_named(features):
    with pytest.raises(ConfigurationError, match=r"no sample of 1 of the 2 classes.*class 17"):
        imprinted_weights(features, range(6), [0, 17], 1.0)
