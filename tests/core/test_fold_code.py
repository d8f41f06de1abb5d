"""fold reads what a module does; the order in which it holds its parts may say something else."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from aanets_plugin import fold
from tests.core.fold_setup import assert_folds, batch_norms, trained


def small_net(*blocks):
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(*blocks),
        nn.Sequential(*(type(block)() for block in blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


class PreActivation(nn.Module):
    """Registered as conv1, bn1, conv2, bn2; run as bn1, conv1, bn2, conv2."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(4)

    def forward(self, x):
        out = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(out))) + x


class SharedConvolution(nn.Module):
    """One convolution, run twice, each time with another BatchNorm after it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.bn2 = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn2(self.conv(F.relu(self.bn1(self.conv(x))))) + x


class SharedNorm(nn.Module):
    """One BatchNorm after two convolutions."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(4, 4, 1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv2(F.relu(self.bn(self.conv1(x))))) + x


class OneModuleTwoNames(nn.Module):
    """The same convolution under two names, with a BatchNorm after one of them."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = self.conv1

    def forward(self, x):
        return self.conv2(F.relu(self.bn1(self.conv1(x)))) + x


class ReadBeforeTheNorm(nn.Module):
    """What the convolution gives is read by the BatchNorm and by the sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        out = self.conv(x)
        return F.relu(self.bn(out)) + out + x


class ActivationBetween(nn.Module):
    """Registered next to each other, with a ReLU in between when run."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(F.relu(self.conv(x))) + x


class DataDependent(nn.Module):
    """A forward that cannot be traced: what runs depends on the numbers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        out = self.conv(x)
        if out.mean() > 1e6:
            return out + x
        return self.bn(out) + x


class BatchStatistics(nn.Module):
    """A BatchNorm without running statistics: there is nothing to fuse."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x):
        return self.bn(self.conv(x)) + x


@pytest.mark.parametrize(
    ("block", "left"),  # BatchNorms that stay in each block
    [
        (PreActivation, 1),
        (SharedConvolution, 2),
        (SharedNorm, 1),
        (OneModuleTwoNames, 1),
        (ReadBeforeTheNorm, 1),
        (ActivationBetween, 1),
        (DataDependent, 1),
        (BatchStatistics, 1),
    ],
)
def test_a_batch_norm_is_fused_only_where_the_code_says_so(block, left):
    net = trained(small_net(block(), block()))
    folded = assert_folds(net)
    # Two levels of two branches with two blocks; the stem's BatchNorm is always fused.
    assert len(batch_norms(folded)) == 8 * left


class Switched(nn.Module):
    """A block with an option by which its BatchNorm is left out."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x, norm=True):
        out = self.conv(x)
        return (self.bn(out) if norm else out) + x


class SwitchedOff(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Switched()

    def forward(self, x):
        return F.relu(self.inner(x, norm=False)) + x


class ReadsTheKernel(nn.Module):
    """The kernel itself is used a second time, beside its layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv(x)) + F.conv2d(x, self.conv.weight, padding=1)


class ReachesInside(nn.Module):
    """A convolution of an inner module is used from outside as well."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x):
        return self.inner(x) + self.inner[0](x)


def hooked_net():
    """A hook on a convolution changes what it gives."""
    net = small_net(ActivationBetween())
    net[0][0].register_forward_hook(lambda module, args, output: output.clamp_min(0))
    return net


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: small_net(SwitchedOff()), id="called-with-an-option"),
        pytest.param(lambda: small_net(ReadsTheKernel()), id="kernel-read"),
        pytest.param(lambda: small_net(ReachesInside()), id="used-from-outside"),
        pytest.param(hooked_net, id="hook"),
    ],
)
def test_a_convolution_that_something_else_reads_keeps_its_batch_norm(make):
    assert_folds(trained(make()))


def test_a_convolution_with_a_computed_weight_folds():
    net = small_net(ActivationBetween())
    weight_norm(net[0][0])
    assert_folds(trained(net, blocks=("all", "all")))


class Remembers(nn.Module):
    """A block that keeps its features and counts its calls."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.calls = 0
        self.features = None

    def forward(self, x):
        self.calls += 1
        self.features = self.conv(x)
        return self.features + x


def test_folding_does_not_run_what_a_forward_does_beside_its_output():
    folded = fold(trained(small_net(Remembers())))
    blocks = [module for module in folded.modules() if isinstance(module, Remembers)]
    assert [(block.calls, block.features) for block in blocks] == [(0, None)] * len(blocks)


def test_groups_padding_biases_and_a_norm_without_weights_fold():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(4, 8, 3, padding=1, groups=2, bias=True, padding_mode="reflect")
            self.bn1 = nn.BatchNorm2d(8, affine=False)
            self.conv2 = nn.Conv2d(8, 4, 1)

        def forward(self, x):
            return self.conv2(F.relu(self.bn1(self.conv1(x)))) + x

    assert not batch_norms(assert_folds(trained(small_net(Biased()))))
