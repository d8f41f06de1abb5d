"""Packed kernels: the same convolution, whatever a host does with it."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet18

from aanets_plugin import convert_to_aanet, fold, packing, profile
from aanets_plugin.packing import PackedConv2d, pack_convolutions
from tests.networks import relative_error, shake

SAME = 1e-6
pytestmark = pytest.mark.skipif(not packing._can_pack(), reason="torch without oneDNN")


@pytest.fixture(autouse=True)
def every_kernel_is_large(monkeypatch):
    monkeypatch.setattr(packing, "LARGE", 1)


def pair(**options):
    """A convolution, and the same one packed."""
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, 3, **options).requires_grad_(False)
    packed = nn.Sequential(copy.deepcopy(plain))
    pack_convolutions(packed)
    return plain, packed[0]


def images(*shape):
    torch.manual_seed(1)
    return torch.randn(shape or (2, 4, 9, 9))


def error(plain, packed, x=None):
    x = images() if x is None else x
    with torch.no_grad():
        return relative_error(packed(x), plain(x))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"padding": (2, 0), "stride": (1, 2), "dilation": 2},
        {"padding": "valid"},
        {"groups": 2, "padding": 1},
    ],
    ids=str,
)
def test_a_packed_convolution_is_the_same(options):
    plain, packed = pair(**options)
    assert error(plain, packed) < SAME
    assert packed._packed is not None  # and it is the packed kernel that computed this
    assert torch.equal(packed(images()), plain(images()))


@pytest.mark.parametrize("options", [{"padding": "same"}, {"padding_mode": "circular"}], ids=str)
def test_what_does_not_pack_is_left(options):
    _, left = pair(padding=1, **options) if "padding_mode" in options else pair(**options)
    assert type(left) is nn.Conv2d


def test_small_kernels_and_other_classes_are_left(monkeypatch):
    class Own(nn.Conv2d):
        pass

    monkeypatch.setattr(packing, "LARGE", 4 * 6 * 9)
    net = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(4, 5, 3), Own(4, 6, 3), nn.Linear(40, 40))
    pack_convolutions(net)
    assert [type(module) for module in net] == [PackedConv2d, nn.Conv2d, Own, nn.Linear]


def test_batches_and_images_of_other_sizes():
    plain, packed = pair(padding=1)
    for shape in ((2, 4, 9, 9), (5, 4, 9, 9), (1, 4, 30, 3), (2, 4, 9, 9), (0, 4, 9, 9)):
        assert packed(images(*shape)).shape == plain(images(*shape)).shape
        if shape[0]:
            assert error(plain, packed, images(*shape)) < SAME
    x = images().contiguous(memory_format=torch.channels_last)
    assert error(plain, packed, x) < SAME
    assert error(plain, packed, images(4, 9, 9)) == 0  # one image, without a batch


def doubled(conv):
    conv.weight.mul_(2)


def reloaded(conv):
    conv.load_state_dict({name: 2 * value for name, value in conv.state_dict().items()})


def replaced(conv):
    conv.weight = nn.Parameter(2 * conv.weight, requires_grad=False)


def filled_anew(conv):
    conv.weight.data = 2 * conv.weight.data


def filled_twice(conv):
    """The second tensor may lie where the first weight was, unless something holds that."""
    filled_anew(conv)
    conv.weight.data = conv.weight.data.clone()


@pytest.mark.parametrize("change", [doubled, reloaded, replaced, filled_anew, filled_twice])
def test_a_change_of_the_weight_is_noticed(change):
    plain, packed = pair()
    assert error(plain, packed) < SAME
    with torch.no_grad():
        change(packed)
    assert error(plain, packed) > 0.5
    with torch.no_grad():
        change(plain)
    assert error(plain, packed) < SAME


def test_copies_pickles_and_states_are_those_of_a_plain_one():
    plain, packed = pair()
    assert error(plain, packed) < SAME
    saved = io.BytesIO()
    torch.save(packed, saved)
    saved.seek(0)
    copies = [
        copy.deepcopy(packed),
        pickle.loads(pickle.dumps(packed)),
        torch.load(saved, weights_only=False),
    ]
    for other in copies:
        assert other._packed is None
        assert error(plain, other) < SAME
    assert list(packed.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(packed.state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_precision_is_plain(dtype):
    plain, packed = pair()
    assert error(plain, packed) < SAME
    plain, packed = plain.to(dtype), packed.to(dtype)
    assert error(plain, packed, images().to(dtype)) == 0
    assert error(plain.float(), packed.float()) < SAME


def test_autocast_and_a_switched_off_library_are_plain():
    plain, packed = pair()
    with torch.autocast("cpu", torch.bfloat16):
        assert error(plain, packed) == 0
    with torch.backends.mkldnn.flags(enabled=False):
        assert error(plain, packed) == 0
    assert packed._packed is None


def test_gradients_by_the_images_flow():
    plain, packed = pair()
    assert error(plain, packed) < SAME
    gradients = []
    for conv in (plain, packed):
        x = images().requires_grad_()
        conv(x).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_kernels_made_in_inference_mode_are_not_packed():
    with torch.inference_mode():
        plain, packed = pair()
        assert relative_error(packed(images()), plain(images())) < SAME
    assert packed._packed is None


def test_the_trial_leaves_the_random_numbers():
    packing._can_pack.cache_clear()
    state = torch.get_rng_state()
    assert packing._can_pack()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_build_without_what_is_needed_keeps_its_convolutions(monkeypatch):
    def missing(*_):
        raise AttributeError("no such operation")

    packing._can_pack.cache_clear()
    monkeypatch.setattr(packing, "_convolution", missing)
    try:
        assert type(pair()[1]) is nn.Conv2d
    finally:
        packing._can_pack.cache_clear()


# -- in a folded network ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return shake(convert_to_aanet(resnet18(num_classes=5))).eval()


@pytest.fixture
def folded(network):
    return fold(network)


def test_a_folded_network_packs_and_the_network_itself_does_not(network, folded):
    x = images(1, 3, 32, 32)
    assert error(network, folded, x) < 1e-4
    packed = [module for module in folded.modules() if isinstance(module, PackedConv2d)]
    assert packed
    assert all(module._packed is not None for module in packed)
    assert not any(isinstance(module, PackedConv2d) for module in network.modules())


@torch.no_grad()
def test_tracers_see_plain_convolutions(folded):
    x = images(1, 3, 32, 32)
    expected = folded(x)
    others = {
        "compiled": torch.compile(folded, fullgraph=True, backend="eager"),
        "exported": torch.export.export(folded, (x,)).module(),
        "traced": torch.jit.trace(folded, x),
    }
    for name, other in others.items():
        assert relative_error(other(x), expected) < 1e-4, name
    assert "mkldnn" not in str(others["traced"].inlined_graph)


@torch.no_grad()
def test_operations_are_counted(network, folded):
    plain = profile(network, (3, 32, 32)).flops
    # α is applied by products, which torch does not count; BatchNorm is not counted either.
    assert profile(folded, (3, 32, 32)).flops == plain
    with FlopCounterMode(display=False) as counter:
        folded(images(1, 3, 32, 32))
    assert counter.get_total_flops() == 2 * plain
