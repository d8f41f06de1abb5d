"""The local similarity classifier and k-means imprinting, against loops over plain numbers."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from aanets_plugin.baselines import LocalSimilarityClassifier, kmeans_proxies, nca_loss
from aanets_plugin.baselines.kmeans import kmeans_seeds, lloyd
from aanets_plugin.errors import ConfigurationError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def cosine(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def literal_similarities(weight, features):
    rows = []
    for feature in features.tolist():
        row = []
        for proxies in weight.tolist():
            cosines = [cosine(proxy, feature) for proxy in proxies]
            total = sum(math.exp(c) for c in cosines)
            row.append(sum(math.exp(c) / total * c for c in cosines))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def literal_lloyd(points, centres, iterations):
    points, centres = points.tolist(), centres.tolist()
    for _ in range(iterations):
        members = [[] for _ in centres]
        for point in points:
            distances = [math.dist(point, centre) for centre in centres]
            members[distances.index(min(distances))].append(point)
        for k, own in enumerate(members):
            if own:
                centres[k] = [sum(axis) / len(own) for axis in zip(*own, strict=True)]
    return torch.tensor(centres, dtype=torch.float64)


def clusters(classes=2, per_cluster=6, k=3, dimensions=8):
    """Each class on `k` axes of its own: directions [classes, k, dimensions], samples, labels."""
    directions = torch.eye(dimensions, dtype=torch.float64)[: classes * k].reshape(classes, k, -1)
    samples = directions.repeat_interleave(per_cluster, dim=1)
    noise = torch.randn(samples.shape, generator=seeded(5), dtype=torch.float64)
    # Lengths differ, since features are normalised first.
    lengths = torch.rand(samples.shape[:2], generator=seeded(6), dtype=torch.float64) + 0.5
    samples = (samples + 0.02 * noise) * lengths.unsqueeze(2)
    labels = torch.arange(classes).repeat_interleave(k * per_cluster)
    order = torch.randperm(len(labels), generator=seeded(7))
    return directions, samples.flatten(0, 1)[order], labels[order]


def test_a_similarity_is_the_softmax_weighted_sum_of_cosines():
    head = LocalSimilarityClassifier(4, 3, proxies=5).double()
    features = torch.randn(6, 4, dtype=torch.float64)
    expected = literal_similarities(head.weight, features)
    torch.testing.assert_close(head.similarities(features), expected, rtol=0, atol=1e-12)
    mean = torch.stack(
        [literal_similarities(w.unsqueeze(1), features).mean(1) for w in head.weight]
    )
    assert not torch.allclose(head.similarities(features), mean.T, atol=1e-4)


def test_one_proxy_is_the_cosine():
    head = LocalSimilarityClassifier(4, 3, proxies=1).double()
    features = torch.randn(2, 4, dtype=torch.float64)
    expected = [[cosine(w, f) for w in head.weight[:, 0].tolist()] for f in features.tolist()]
    torch.testing.assert_close(
        head.similarities(features), torch.tensor(expected, dtype=torch.float64)
    )


def test_the_forward_is_eta_times_the_similarities_whatever_the_lengths():
    head = LocalSimilarityClassifier(4, 3)
    features = torch.randn(2, 4)
    with torch.no_grad():
        head.eta.fill_(3.0)
    torch.testing.assert_close(head(features), 3 * head.similarities(features))
    torch.testing.assert_close(head(features), head(7 * features))


def test_every_parameter_learns_from_the_nca_loss():
    head = LocalSimilarityClassifier(4, 3, proxies=2)
    head.add_classes(2)
    targets = torch.tensor([0, 1, 2, 3, 4])
    nca_loss(head.similarities(torch.randn(5, 4)), targets, head.eta).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())


def test_growing_leaves_the_old_classes_as_they_were():
    head = LocalSimilarityClassifier(4, 3, proxies=2)
    teacher, old = copy.deepcopy(head), head.weights[0]
    features = torch.randn(5, 4)
    before = head(features)
    head.add_classes(2)
    assert head.out_features == 5
    assert head.weights[0] is old
    assert head(features).shape == (5, 5)
    # Another matrix product: the last bit may differ.
    torch.testing.assert_close(head(features)[:, :3], before)
    assert teacher(features).shape == (5, 3)


def test_given_weights_become_the_new_proxies_as_a_copy():
    head = LocalSimilarityClassifier(4, 3, proxies=2)
    weights = torch.randn(1, 2, 4)
    head.add_classes(1, weights)
    assert torch.equal(head.weight[3:], weights.clone())
    weights.zero_()
    assert head.weight[3:].abs().sum() > 0


def test_new_proxies_have_the_dtype_of_the_old():
    head = LocalSimilarityClassifier(4, 3, proxies=2).double()
    head.add_classes(1)
    head.add_classes(1, torch.randn(1, 2, 4))
    assert {p.dtype for p in head.weights} == {torch.float64}


@pytest.mark.parametrize("iterations", [1, 2, 50])
def test_lloyd_is_the_textbook_loop(iterations):
    points = torch.randn(30, 3, generator=seeded(1), dtype=torch.float64)
    found = lloyd(points, points[:4], iterations)
    expected = literal_lloyd(points, points[:4], iterations)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(found, literal_lloyd(points, points[4:8], iterations), atol=1e-3)


def test_a_centre_without_samples_stays():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    centres = torch.tensor([[0.4, 0.0], [9.0, 9.0]])
    assert torch.equal(lloyd(points, centres), torch.tensor([[0.5, 0.0], [9.0, 9.0]]))


def test_seeds_are_different_samples_where_there_are_enough():
    points = torch.randn(6, 2, generator=seeded(2), dtype=torch.float64)
    seeds = kmeans_seeds(points, 6, seeded())
    assert torch.equal(seeds.unique(dim=0), points.unique(dim=0))
    same = torch.ones(4, 2, dtype=torch.float64)
    assert torch.equal(kmeans_seeds(same, 3, seeded()), same[:3])


@pytest.mark.parametrize("seed", range(3))
def test_kmeans_finds_well_separated_clusters_of_every_class(seed):
    directions, samples, labels = clusters()
    found = kmeans_proxies(samples, labels, [0, 1], 3, seeded(seed))
    for label in range(2):
        distances = torch.cdist(directions[label], found[label])
        nearest = distances.min(dim=1)
        assert nearest.values.max() < 0.1
        assert sorted(nearest.indices.tolist()) == [0, 1, 2]
        assert torch.cdist(directions[1 - label], found[label]).min() > 1


def test_proxies_come_in_the_order_of_the_classes_and_as_long_as_asked():
    _, samples, labels = clusters()
    found = kmeans_proxies(samples, labels, [1, 0], 3, seeded(), norm=2.5)
    assert found.shape == (2, 3, 8)
    torch.testing.assert_close(found[0], 2.5 * kmeans_proxies(samples, labels, [1], 3, seeded())[0])
    assert found.norm(dim=2).mean().item() == pytest.approx(2.5, rel=0.01)


def test_the_same_seed_gives_the_same_proxies_and_another_one_others():
    samples, labels = torch.randn(40, 4), torch.zeros(40)
    first = kmeans_proxies(samples, labels, [0], 5, seeded(0))
    assert torch.equal(first, kmeans_proxies(samples, labels, [0], 5, seeded(0)))
    assert not torch.equal(first, kmeans_proxies(samples, labels, [0], 5, seeded(1)))
    assert first.dtype == samples.dtype


def test_a_class_with_few_samples_has_each_as_a_proxy_and_no_two_alike():
    samples = torch.nn.functional.normalize(torch.randn(2, 4, dtype=torch.float64))
    found = kmeans_proxies(samples, torch.zeros(2), [0], 5, seeded())[0]
    torch.testing.assert_close(found[:2], samples)
    assert len(found.unique(dim=0)) == 5
    assert (torch.cdist(found, samples).min(dim=1).values < 0.1).all()


def test_imprinting_classifies_the_new_classes_at_once():
    _, samples, labels = clusters()
    head = LocalSimilarityClassifier(8, 4, proxies=3).double()
    before = head.weight.norm(dim=2).mean()
    head.imprint(samples, labels + 4, [4, 5], seeded())
    assert torch.equal(head(samples).argmax(dim=1), labels + 4)
    torch.testing.assert_close(head.weights[1].norm(dim=2).mean(), before, rtol=0.01, atol=0)
    grown = LocalSimilarityClassifier(8, 4, proxies=3).double()
    grown.add_classes(2)  # the control: random proxies know nothing
    assert not torch.equal(grown(samples).argmax(dim=1), labels + 4)


def test_what_cannot_be_is_refused():
    head = LocalSimilarityClassifier(4, 3, proxies=2)
    with pytest.raises(ConfigurationError, match="proxies=0"):
        LocalSimilarityClassifier(4, 3, proxies=0)
    with pytest.raises(ConfigurationError, match="count=0"):
        head.add_classes(0)
    with pytest.raises(ConfigurationError, match=r"\(1, 3, 4\): must be \[1, 2, 4\]"):
        head.add_classes(1, torch.randn(1, 3, 4))
    features, targets = torch.randn(6, 4), torch.tensor([7, 7, 7, 8, 8, 8])
    with pytest.raises(ConfigurationError, match=r"class 9 has no features.*\[7, 9\]"):
        head.imprint(features, targets, [7, 9])
    with pytest.raises(ConfigurationError, match=r"\(6, 4\).*\(5,\)"):
        kmeans_proxies(features, targets[:5], [7], 2)
    with pytest.raises(ConfigurationError, match="proxies=0"):
        kmeans_proxies(features, targets, [7], 0)
    assert head.out_features == 3
    assert len(head.weights) == 1
