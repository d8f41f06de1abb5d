"""Steps on the simplex: what `project` gives is the nearest point, and how long a step is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aanets_plugin.alpha_step import NormalizedStep, PlainStep, project

settings.register_profile("steps", deadline=None, max_examples=100)
settings.load_profile("steps")

# Sums of a few numbers of size 100 are exact to about 1e-13.
ROUNDING = 1e-12

numbers = st.floats(-100, 100, allow_nan=False)
any_weights = st.lists(numbers, min_size=1, max_size=6).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


def simplex(size):
    """Points with weights in [0, 1] that sum to one, corners and edges among them."""
    parts = st.lists(st.floats(0, 1), min_size=size, max_size=size).filter(lambda v: sum(v) > 1e-3)
    return parts.map(lambda v: torch.tensor(v, dtype=torch.float64) / sum(v))


def is_nearest(weights, point):
    """The Karush-Kuhn-Tucker conditions: one shift for what stays above 0, no less elsewhere."""
    shift = weights - point
    inside = point > 0
    common = shift[inside].mean()
    return bool(
        (shift[inside] - common).abs().max() < ROUNDING and (shift[~inside] < common + 1e-12).all()
    )


wide_weights = st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=6).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


@given(any_weights | wide_weights)
def test_a_projection_is_in_the_simplex(weights):
    point = project(weights)
    assert ((point >= 0) & (point <= 1)).all()
    assert abs(point.sum().item() - 1) < ROUNDING


@given(any_weights)
def test_a_projection_is_the_nearest_point(weights):
    assert is_nearest(weights, project(weights))


def test_clipping_and_dividing_by_the_sum_is_not_the_nearest_point():
    """The control: in the simplex, but another point."""
    weights = torch.tensor([0.9, 0.5, -0.3], dtype=torch.float64)
    clipped = weights.clamp(0, 1)
    assert not is_nearest(weights, clipped / clipped.sum())


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(st.lists(numbers, min_size=n, max_size=n), simplex(n))
    )
)
def test_no_point_of_the_simplex_is_nearer_than_the_projection(pair):
    values, other = pair
    weights = torch.tensor(values, dtype=torch.float64)
    assert (weights - project(weights)).norm() <= (weights - other).norm() + ROUNDING


@given(any_weights)
def test_projecting_twice_changes_nothing(weights):
    once = project(weights)
    assert (project(once) - once).abs().max() < ROUNDING


@given(st.integers(1, 6).flatmap(simplex))
def test_a_point_of_the_simplex_is_its_own_projection(weights):
    assert (project(weights) - weights).abs().max() < ROUNDING


def test_a_point_outside_the_simplex_is_not_its_own_projection():
    """The control, with the numbers done by hand."""
    outside = torch.tensor([1.25, 0.25], dtype=torch.float64)
    assert project(outside).tolist() == [1.0, 0.0]
    assert project(torch.tensor([0.75, 0.75])).tolist() == [0.5, 0.5]


def test_a_weight_beyond_the_resolution_of_doubles_is_projected_too():
    """A plain step with a far too large lr lands there."""
    huge = torch.tensor([1e20, -1e20], dtype=torch.float64)
    assert project(huge).tolist() == [1.0, 0.0]


gradients = st.lists(numbers, min_size=2, max_size=4).filter(lambda g: max(g) - min(g) > 1e-3)


@given(gradients, st.floats(1e-4, 0.2))
def test_the_first_normalized_step_has_the_length_lr(values, lr):
    """From equal weights; 0.2 is less than the way from there to an edge of four (0.289)."""
    gradient = torch.tensor(values, dtype=torch.float64)
    alpha = torch.full_like(gradient, 1 / len(values))
    step = NormalizedStep(0.0)("level", alpha, gradient, lr) - alpha
    assert step.norm().item() == pytest.approx(lr, rel=1e-9)
    assert step @ gradient < 0
    assert abs(step.sum().item()) < ROUNDING


@given(gradients, st.floats(1e-3, 1e3))
def test_a_multiple_of_the_gradient_gives_the_same_normalized_steps(values, factor):
    gradient = torch.tensor(values, dtype=torch.float64)
    start = torch.full_like(gradient, 1 / len(values))
    one, other = NormalizedStep(0.5), NormalizedStep(0.5)
    for turn in (gradient, gradient.flip(0), 0.1 * gradient):
        a, b = one("level", start, turn, 0.1), other("level", start, factor * turn, 0.1)
        assert (a - b).abs().max() < ROUNDING


def test_a_multiple_of_the_gradient_gives_another_plain_step():
    """The control for the invariance, and Eq. 8 in numbers: 0.5 - 0.1 (3 - 2) = 0.4."""
    alpha = torch.tensor([0.5, 0.5], dtype=torch.float64)
    gradient = torch.tensor([3.0, 1.0], dtype=torch.float64)
    assert PlainStep(0.0)("level", alpha, gradient, 0.1).tolist() == pytest.approx([0.4, 0.6])
    assert PlainStep(0.0)("level", alpha, 2 * gradient, 0.1).tolist() == pytest.approx([0.3, 0.7])


@pytest.mark.parametrize("step", [PlainStep, NormalizedStep])
def test_a_zero_gradient_moves_nothing(step):
    alpha = torch.tensor([0.3, 0.7], dtype=torch.float64)
    assert torch.equal(step(0.0)("level", alpha, torch.zeros_like(alpha), 0.1), alpha)


def test_normalized_steps_on_a_constant_gradient_fall_like_the_root_of_their_number():
    gradient = torch.tensor([2.0, 0.0], dtype=torch.float64)
    alpha, step = torch.tensor([0.9, 0.1], dtype=torch.float64), NormalizedStep(0.0)
    for number in range(1, 6):
        moved = step("level", alpha, gradient, 0.1)
        assert (moved - alpha).norm().item() == pytest.approx(0.1 / number**0.5, rel=1e-12)
        alpha = moved


def test_momentum_takes_a_share_of_the_previous_step_again():
    alpha = torch.tensor([0.5, 0.5], dtype=torch.float64)
    gradient = torch.tensor([1.0, -1.0], dtype=torch.float64)
    step = PlainStep(0.5)
    first = step("level", alpha, gradient, 0.1)
    second = step("level", first, gradient, 0.1)
    assert first.tolist() == pytest.approx([0.4, 0.6])
    assert second.tolist() == pytest.approx([0.25, 0.75])  # 0.4 - (0.1 + 0.5 * 0.1)
    plain = PlainStep(0.0)
    assert plain("level", plain("level", alpha, gradient, 0.1), gradient, 0.1).tolist() == (
        pytest.approx([0.3, 0.7])
    )


@pytest.mark.parametrize("step", [PlainStep, NormalizedStep])
def test_levels_have_memories_of_their_own(step):
    alpha = torch.tensor([0.5, 0.5], dtype=torch.float64)
    gradient = torch.tensor([1.0, -1.0], dtype=torch.float64)
    rule = step(0.5)
    first = rule("a", alpha, gradient, 0.01)
    assert torch.equal(rule("b", alpha, gradient, 0.01), first)
    assert not torch.equal(rule("a", alpha, gradient, 0.01), first)


def test_momentum_ends_with_the_phase_and_the_sizes_of_normalized_steps_go_on():
    alpha = torch.tensor([0.5, 0.5], dtype=torch.float64)
    gradient = torch.tensor([1.0, -1.0], dtype=torch.float64)
    plain, normalized, without = PlainStep(0.5), NormalizedStep(0.5), NormalizedStep(0.0)
    first = plain("a", alpha, gradient, 0.01)
    for rule in (normalized, without):
        rule("a", alpha, gradient, 0.01)
    for rule in (plain, normalized, without):
        rule.begin_phase()
    assert torch.equal(plain("a", alpha, gradient, 0.01), first)
    second = normalized("a", alpha, gradient, 0.01)
    assert torch.equal(second, without("a", alpha, gradient, 0.01))
    assert (second - alpha).norm().item() == pytest.approx(0.01 / 2**0.5, rel=1e-12)


@pytest.mark.parametrize("step", [PlainStep, NormalizedStep])
def test_a_step_rule_goes_on_from_its_state(step):
    alpha = torch.tensor([0.5, 0.5], dtype=torch.float64)
    gradient = torch.tensor([1.0, -1.0], dtype=torch.float64)
    rule, resumed, fresh = step(0.5), step(0.5), step(0.5)
    rule("a", alpha, gradient, 0.01)
    resumed.load_state_dict(rule.state_dict())
    expected = rule("a", alpha, 3 * gradient, 0.01)
    assert torch.equal(resumed("a", alpha, 3 * gradient, 0.01), expected)
    assert not torch.equal(fresh("a", alpha, 3 * gradient, 0.01), expected)
