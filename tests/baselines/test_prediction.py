"""Class means and iCaRL's nearest-mean classifier, against literal loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aanets_plugin.baselines import class_means, nearest_mean
from aanets_plugin.baselines.prediction import flips_horizontally
from aanets_plugin.errors import ConfigurationError

T = pytest.importorskip("torchvision.transforms")
v2 = pytest.importorskip("torchvision.transforms.v2")

TARGETS = [9, 4, 9, 4, 4, 2, 9]


@pytest.fixture
def features() -> Tensor:
    """Rows of very different lengths."""
    lengths = torch.arange(1, 8, dtype=torch.float64).unsqueeze(1)
    return lengths * torch.randn(7, 3, dtype=torch.float64)


def unit(row: list[float]) -> list[float]:
    return [value / math.hypot(*row) for value in row]


def literal_means(targets: list[int], *views: Tensor) -> Tensor:
    """For each class, the average over its images and over the views of each image."""
    rows = []
    for label in sorted(set(targets)):
        samples = [
            unit(view[i].tolist())
            for view in views
            for i, target in enumerate(targets)
            if target == label
        ]
        rows.append(unit([sum(column) / len(samples) for column in zip(*samples, strict=True)]))
    return torch.tensor(rows, dtype=torch.float64)


def literal_nearest(features: Tensor, classes: Tensor, means: Tensor) -> list[int]:
    predictions = []
    for row in features.tolist():
        distances = [math.dist(unit(row), mean) for mean in means.tolist()]
        predictions.append(classes.tolist()[distances.index(min(distances))])
    return predictions


def test_means_are_the_unit_mean_of_unit_features(features):
    classes, means = class_means(features, TARGETS)
    assert classes.tolist() == [2, 4, 9]
    torch.testing.assert_close(means, literal_means(TARGETS, features))
    torch.testing.assert_close(means.norm(dim=1), torch.ones(3, dtype=torch.float64))
    shifted = TARGETS[1:] + TARGETS[:1]
    assert not torch.allclose(means, literal_means(shifted, features))


def test_flipped_images_are_averaged_in(features):
    flipped = torch.randn_like(features)
    _, means = class_means(features, TARGETS, flipped)
    torch.testing.assert_close(means, literal_means(TARGETS, features, flipped))
    assert not torch.allclose(means, literal_means(TARGETS, features))
    _, alone = class_means(features, TARGETS, features)
    torch.testing.assert_close(alone, literal_means(TARGETS, features))


def test_the_length_of_a_feature_does_not_count(features):
    _, means = class_means(features, TARGETS)
    _, scaled = class_means(features * 10 ** torch.arange(7).unsqueeze(1), TARGETS)
    torch.testing.assert_close(scaled, means)
    assert not torch.allclose(class_means(features + 1, TARGETS)[1], means)


@pytest.mark.parametrize("targets", [TARGETS, tuple(TARGETS), torch.tensor(TARGETS)], ids=type)
def test_targets_may_be_anything_that_reads_as_labels(features, targets):
    assert torch.equal(class_means(features, targets)[1], class_means(features, TARGETS)[1])


def test_the_nearest_mean_is_found_for_every_sample(features):
    classes, means = class_means(features, TARGETS)
    samples = torch.randn(40, 3, dtype=torch.float64)
    predictions = nearest_mean(samples, classes, means)
    assert predictions.tolist() == literal_nearest(samples, classes, means)
    assert set(predictions.tolist()) == {2, 4, 9}
    assert predictions.tolist() != literal_nearest(-samples, classes, means)


def test_distance_decides_also_for_means_of_any_length():
    classes, means = torch.tensor([3, 8]), torch.tensor([[1.0, 0.0], [9.0, 9.0]])
    # By the angle the second would be nearer.
    assert nearest_mean(torch.tensor([[1.0, 0.9]]), classes, means).tolist() == [3]


def test_separate_clusters_are_told_apart():
    features = torch.eye(4).repeat(5, 1) + 0.1 * torch.randn(20, 4)
    targets = torch.arange(4).repeat(5) + 10
    assert torch.equal(nearest_mean(features, *class_means(features, targets)), targets)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_features_give_single_precision_means(features, dtype):
    half = features.to(dtype)
    classes, means = class_means(half, TARGETS)
    assert means.dtype == torch.float32
    torch.testing.assert_close(means, literal_means(TARGETS, half).float())
    assert nearest_mean(half, classes, means).tolist() == literal_nearest(half, classes, means)


def test_no_graph_comes_out(features):
    features.requires_grad_()
    classes, means = class_means(features, TARGETS, features)
    assert not means.requires_grad
    assert not nearest_mean(features, classes, means).requires_grad


def test_a_feature_of_zeros_is_no_reason_for_nan(features):
    features[0] = 0
    classes, means = class_means(features, TARGETS)
    assert means.isfinite().all()
    assert nearest_mean(features, classes, means)[0] in classes


def test_means_of_nothing_are_refused():
    with pytest.raises(ConfigurationError, match=r"shape \(0, 3\): must have at least one sample"):
        class_means(torch.empty(0, 3), [])


def test_labels_and_features_of_different_number_are_refused(features):
    with pytest.raises(ConfigurationError, match="6 labels, but the Tensor has 7 samples"):
        class_means(features, TARGETS[:6])


def test_flipped_features_of_other_images_are_refused(features):
    with pytest.raises(ConfigurationError, match=r"flipped has the shape \(6, 3\).*\(7, 3\)"):
        class_means(features, TARGETS, features[:6])


def test_features_that_are_not_finite_are_refused(features):
    broken = features.clone()
    broken[2, 1] = math.nan
    with pytest.raises(ConfigurationError, match="the first is row 2"):
        class_means(broken, TARGETS)
    with pytest.raises(ConfigurationError, match="the first is row 2"):
        class_means(features, TARGETS, broken)


def test_means_of_another_network_or_without_labels_are_refused(features):
    classes, means = class_means(features, TARGETS)
    with pytest.raises(ConfigurationError, match=r"features has the shape \(7, 2\).*\(3, 3\)"):
        nearest_mean(features[:, :2], classes, means)
    with pytest.raises(ConfigurationError, match=r"classes has the shape \(2,\), .* \(3, 3\)"):
        nearest_mean(features, classes[:2], means)
    with pytest.raises(ConfigurationError, match="means is empty"):
        nearest_mean(features, classes[:0], means[:0])


@pytest.mark.parametrize(
    "transforms",
    [
        T.RandomHorizontalFlip(),
        [T.ToTensor(), T.RandomHorizontalFlip()],
        T.Compose([T.ToTensor(), T.RandomApply([T.RandomHorizontalFlip(1.0)])]),
        v2.Compose([v2.RandomCrop(4), v2.RandomHorizontalFlip()]),
        torch.nn.Sequential(v2.RandomHorizontalFlip()),
    ],
    ids=["alone", "list", "nested", "v2", "Sequential"],
)
def test_a_horizontal_flip_is_found(transforms):
    assert flips_horizontally(transforms)


@pytest.mark.parametrize(
    "transforms",
    [None, T.Compose([T.RandomCrop(4), T.RandomVerticalFlip()]), T.RandomHorizontalFlip(p=0)],
    ids=["none", "others", "never"],
)
def test_other_transforms_are_no_horizontal_flip(transforms):
    assert not flips_horizontally(transforms)
