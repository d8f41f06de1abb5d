"""Herding, against what it promises and against a literal textbook loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.herding import herd, herd_classes
from tests.core.exemplars_setup import LABELS, dataset_of, seeded


def textbook_herding(features: torch.Tensor, k: int) -> list[int]:
    """Algorithm 4 of iCaRL, word for word, in float64."""
    phi = [f / f.norm() if f.norm() > 0 else f for f in features.double()]
    mu = torch.stack(phi).mean(dim=0)
    chosen: list[int] = []
    for j in range(1, k + 1):
        total = sum((phi[i] for i in chosen), torch.zeros_like(mu))
        left = [i for i in range(len(phi)) if i not in chosen]
        chosen.append(min(left, key=lambda i: float((mu - (phi[i] + total) / j).norm())))
    return chosen


def nearest_to_mean(features: torch.Tensor, k: int) -> list[int]:
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    ranked: list[int] = (unit - unit.mean(dim=0)).norm(dim=1).argsort().tolist()
    return ranked[:k]


class TestHerd:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize(("n", "d", "k"), [(1, 3, 1), (30, 5, 30), (60, 16, 20), (40, 64, 7)])
    def test_herding_equals_the_textbook_loop(
        self, n: int, d: int, k: int, dtype: torch.dtype
    ) -> None:
        # Features after a ReLU: not centred, of different lengths.
        features = torch.randn(n, d, generator=seeded(n)).relu().add(0.01).to(dtype)
        chosen = herd(features, k)
        assert chosen.dtype == torch.int64
        assert chosen.tolist() == textbook_herding(features, k)

    @settings(deadline=None, max_examples=40)
    @given(
        n=st.integers(1, 12), d=st.integers(1, 6), seed=st.integers(0, 2**32), ties=st.booleans()
    )
    def test_no_other_choice_comes_closer_at_any_step(
        self, n: int, d: int, seed: int, ties: bool
    ) -> None:
        features = torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)
        if ties:
            features = features.round()
        chosen = herd(features, n).tolist()
        assert sorted(chosen) == list(range(n))
        unit = torch.nn.functional.normalize(features, dim=1)
        for step in range(1, n + 1):
            means = (unit[chosen[: step - 1]].sum(dim=0) + unit) / step
            distances = (means - unit.mean(dim=0)).square().sum(dim=1)
            # Squared distances are at most four: this is a few thousand roundings in float64.
            assert distances[chosen[step - 1]] <= distances[chosen[step - 1 :]].min() + 1e-12

    def test_the_textbook_tells_herding_from_the_nearest_to_the_mean(self) -> None:
        features = torch.randn(60, 16, generator=seeded())
        expected = textbook_herding(features, 20)
        assert nearest_to_mean(features, 20)[0] == expected[0]
        assert nearest_to_mean(features, 20) != expected

    def test_herding_approximates_the_mean_better_than_the_nearest_do(self) -> None:
        features = torch.randn(60, 16, generator=seeded())
        unit = torch.nn.functional.normalize(features, dim=1)

        def error(chosen: list[int]) -> float:
            return float((unit[chosen].mean(dim=0) - unit.mean(dim=0)).norm())

        assert error(herd(features, 20).tolist()) < 0.5 * error(nearest_to_mean(features, 20))

    def test_a_shorter_memory_is_a_prefix_of_a_longer_one(self) -> None:
        features = torch.randn(40, 8, generator=seeded())
        assert torch.equal(herd(features, 20)[:13], herd(features, 13))

    def test_the_length_of_a_feature_does_not_matter(self) -> None:
        features = torch.randn(40, 8, generator=seeded())
        lengths = torch.tensor([1e-30, 0.5, 3.0, 1e30]).repeat(10).unsqueeze(1)
        assert torch.equal(herd(features.double() * lengths, 20), herd(features, 20))

    def test_zero_vectors_are_ranked_like_any_other(self) -> None:
        features = torch.randn(12, 4, generator=seeded())
        features[[2, 7]] = 0
        chosen = herd(features, 12).tolist()
        expected = textbook_herding(features, 12)
        # The two zero vectors are equal, so that either may come first.
        assert [2 if i == 7 else i for i in chosen] == [2 if i == 7 else i for i in expected]
        assert sorted(chosen) == list(range(12))
        assert sorted(herd(torch.zeros(5, 3), 5).tolist()) == list(range(5))

    def test_features_are_neither_changed_nor_tracked(self) -> None:
        features = torch.randn(6, 4, generator=seeded()).double().requires_grad_()
        before = features.detach().clone()
        assert not herd(features, 3).requires_grad
        assert torch.equal(features.detach(), before)

    def test_more_exemplars_than_samples_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"k=5: must be ≤ 4.*Lower k"):
            herd(torch.randn(4, 2), 5)

    @pytest.mark.parametrize("k", [0, -2, 1.5, None, False])
    def test_k_must_be_a_positive_integer(self, k: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"k={k!r}"):
            herd(torch.randn(4, 2), k)

    @pytest.mark.parametrize("shape", [(4,), (4, 2, 2)])
    def test_features_must_be_a_matrix(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ConfigurationError, match="must be floating point"):
            herd(torch.randn(shape), 1)

    def test_features_must_be_a_floating_point_tensor(self) -> None:
        with pytest.raises(ConfigurationError, match=r"dtype torch\.int64.*\.float\(\)"):
            herd(torch.ones(4, 2, dtype=torch.int64), 1)
        untyped: Any = [[1.0, 2.0]]
        with pytest.raises(ConfigurationError, match="features is a list"):
            herd(untyped, 1)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_features_must_be_finite(self, value: float) -> None:
        features = torch.randn(4, 2)
        features[2, 1] = value
        with pytest.raises(ConfigurationError, match=r"in 1 of 4 rows, the first is row 2"):
            herd(features, 1)


class TestHerdClasses:
    def test_every_class_is_herded_on_its_own(self) -> None:
        features = torch.randn(60, 8, generator=seeded())
        labels = torch.randint(3, 7, (60,), generator=seeded())
        herded = herd_classes(features, labels, 5)
        assert list(herded) == [3, 4, 5, 6]
        for label, chosen in herded.items():
            rows = (labels == label).nonzero().flatten()
            assert torch.equal(chosen, rows[herd(features[rows], 5)])

    def test_the_labels_may_come_from_a_dataset(self) -> None:
        features = torch.randn(len(LABELS), 8, generator=seeded())
        from_dataset = herd_classes(features, dataset_of(LABELS), 3)
        from_labels = herd_classes(features, LABELS, 3)
        assert {c: i.tolist() for c, i in from_dataset.items()} == {
            c: i.tolist() for c, i in from_labels.items()
        }

    def test_no_samples_are_no_classes(self) -> None:
        assert herd_classes(torch.empty(0, 3), [], 2) == {}

    def test_a_class_that_is_too_small_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match=r"k=4: .* class 9 has 3 samples"):
            herd_classes(torch.randn(len(LABELS), 2), LABELS, 4)

    def test_one_label_per_feature_is_needed(self) -> None:
        with pytest.raises(
            ConfigurationError, match="targets has 11 labels, but the Tensor has 10"
        ):
            herd_classes(torch.randn(10, 2), LABELS, 1)

    def test_the_arguments_of_herd_are_checked_here_too(self) -> None:
        with pytest.raises(ConfigurationError, match="k=0"):
            herd_classes(torch.randn(len(LABELS), 2), LABELS, 0)
        features = torch.randn(len(LABELS), 2)
        features[9, 0] = float("nan")
        with pytest.raises(ConfigurationError, match="the first is row 9"):
            herd_classes(features, LABELS, 1)
