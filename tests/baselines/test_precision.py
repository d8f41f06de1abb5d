"""Heads and losses under autocast: what must be told apart keeps its digits."""

import pytest
import torch

from aanets_plugin.baselines import LUCIR, CifarResNet, CosineLinear, PODNet
from aanets_plugin.baselines.lucir import less_forget_loss
from aanets_plugin.baselines.network import IncrementalNet, without_head
from aanets_plugin.baselines.podnet import pod_spatial
from aanets_plugin.baselines.precision import at_least_float32, cosines
from aanets_plugin.baselines.proxies import LocalSimilarityClassifier

HALF = torch.bfloat16


def close_features(count=64, apart=0.05):
    """Features and a teacher's that differ by about a thousandth in their cosine."""
    torch.manual_seed(0)
    features = torch.randn(count, 32)
    return features, features + apart * torch.randn(count, 32)


@pytest.mark.parametrize("head", [CosineLinear(32, 5), LocalSimilarityClassifier(32, 5, 3)])
def test_a_head_scores_under_autocast_as_without(head):
    features, _ = close_features()
    with torch.autocast("cpu", dtype=HALF):
        found = head(features)
        control = torch.nn.functional.linear(features, torch.randn(5, 32))
    assert found.dtype is torch.float32
    assert control.dtype is HALF  # autocast did reach what is not protected
    torch.testing.assert_close(found, head(features))


def test_features_in_half_precision_are_scored_in_that_of_the_weights():
    features, _ = close_features()
    weights = torch.randn(5, 32)
    found = cosines(features.to(HALF), weights)
    torch.testing.assert_close(found, cosines(features.to(HALF).float(), weights))
    assert cosines(features.double(), weights).dtype is torch.float64


@pytest.mark.parametrize("kind", [torch.float16, HALF, torch.float32, torch.float64])
def test_no_digit_is_given_away(kind):
    x = torch.ones(3, dtype=kind)
    assert at_least_float32(x).dtype is (torch.float64 if kind is torch.float64 else torch.float32)
    assert kind in (torch.float16, HALF) or at_least_float32(x) is x


def test_less_forget_tells_features_apart_that_differ_by_a_thousandth():
    own, teacher = (part.to(HALF) for part in close_features())
    exact = less_forget_loss(own.double(), teacher.double()).item()
    assert less_forget_loss(own, teacher).item() == pytest.approx(exact, rel=1e-3)
    in_half = 1 - torch.nn.functional.cosine_similarity(own, teacher, dim=1).mean()
    assert in_half.item() != pytest.approx(exact, rel=0.05)


def test_pooled_maps_keep_their_digits():
    torch.manual_seed(0)
    maps = torch.randn(2, 4, 8, 8)
    own, teacher = maps.to(HALF), (maps + 0.05 * torch.randn_like(maps)).to(HALF)
    exact = pod_spatial([own.double()], [teacher.double()]).item()
    assert pod_spatial([own], [teacher]).item() == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("method", [LUCIR(), PODNet()], ids=lambda method: method.name)
def test_a_methods_loss_under_autocast_is_in_float32_and_close(method):
    torch.manual_seed(0)
    net = IncrementalNet(without_head(CifarResNet(1, 4)), method.head(64, 4)).eval()
    teacher = IncrementalNet(without_head(CifarResNet(1, 4)), method.head(64, 4)).eval()
    net.fc = method.grow(net.fc, 2)
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 6

    def loss():
        out = method.observe(net, x, maps=True)
        with torch.no_grad():
            taught = method.observe(teacher, x, maps=True)
        return method.loss(net.fc, out, y, taught)

    full = loss()
    with torch.autocast("cpu", dtype=HALF):
        found = loss()
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, full, rtol=0.02, atol=0)
