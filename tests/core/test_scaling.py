"""What learns in each kind of block, and how a model goes from one state to the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import (
    UnsupportedModelError,
    convert_to_aanet,
    freeze_base,
    levels,
    parameter_groups,
    thaw_base,
)
from aanets_plugin.baselines import CifarResNet
from aanets_plugin.scaling import absorb, scale, scaled_layers
from tests.networks import relative_error, shake


@pytest.fixture
def x():
    return torch.randn(4, 3, 16, 16)


def train_a_little(model, x, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(len(x))).backward()
        optimizer.step()


def timm_layer(name, **options):
    return getattr(pytest.importorskip("timm.layers"), name)(6, 4, 3, **options)


LAYERS = {
    "Conv2d": lambda: nn.Conv2d(6, 4, 3),
    "Conv2d-groups": lambda: nn.Conv2d(6, 4, (1, 5), groups=2, bias=False),
    "Conv1d": lambda: nn.Conv1d(6, 4, 3),
    "Linear": lambda: nn.Linear(6, 4),
    "StdConv2d": lambda: timm_layer("StdConv2d"),
    "ScaledStdConv2d": lambda: timm_layer("ScaledStdConv2d"),
    "Conv2dSame": lambda: timm_layer("Conv2dSame", stride=2),
}


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_phi_scales_each_kernel_slice(build):
    """One φ per (output, input) pair of a kernel, whatever the layer does with its weight."""
    layer = build()
    shape = {nn.Conv1d: (2, 6, 9), nn.Linear: (2, 6)}.get(type(layer), (2, 6, 9, 9))
    x = torch.randn(shape)
    before, names = layer(x), [name for name, _ in layer.named_parameters()]
    weight = layer.weight.detach().clone()
    scale(layer)
    assert layer.delta.shape == weight.shape[:2] + (1,) * (weight.dim() - 2)
    assert [name for name, _ in layer.named_parameters()] == ["delta"]
    assert set(names) <= {name for name, _ in layer.named_buffers()}
    torch.testing.assert_close(layer(x), before, rtol=0, atol=0)

    with torch.no_grad():
        layer.delta.uniform_(-0.5, 1.0)
    by_hand = torch.stack([layer.phi[o] * weight[o] for o in range(len(weight))])
    torch.testing.assert_close(layer.weight, by_hand, rtol=0, atol=0)
    assert relative_error(layer(x), before) > 1e-3
    torch.testing.assert_close(dict(layer.named_buffers())["weight"], weight, rtol=0, atol=0)


LEARNS = {
    ("all", "scaling"): (lambda k: True, lambda k: "delta" in k or "bn" in k or "shortcut.1" in k),
    ("all", "frozen"): (lambda k: True, lambda k: False),
    ("scaling", "frozen"): (
        lambda k: "delta" in k or "bn" in k or "shortcut.1" in k,
        lambda k: False,
    ),
}


@pytest.mark.parametrize("blocks", LEARNS, ids="+".join)
def test_parameters_are_exactly_what_learns(blocks, x):
    model = convert_to_aanet(CifarResNet(1, 4), blocks=blocks)
    for level in levels(model):
        for branch, learns in zip(level.branches, LEARNS[blocks], strict=True):
            assert all(learns(name) for name, _ in branch.named_parameters())
            assert not any(
                learns(name)
                for name, _ in branch.named_buffers()
                if "running" not in name
                and "num_batches" not in name
                and "conv" not in name
                and "shortcut.0" not in name
            )
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    held = {
        name: buffer.clone()
        for name, buffer in model.named_buffers()
        if "running" not in name and "num_batches" not in name
    }
    assert any(name.endswith("alpha") for name in held)
    assert any(name.endswith("conv1.weight") for name in held)
    train_a_little(model, x)
    for name, buffer in model.named_buffers():
        if name in held:
            assert torch.equal(buffer, held[name]), name
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, parameters[name]), name


def test_batchnorm_of_a_frozen_branch_never_moves_and_that_of_a_scaling_branch_does(x):
    model = convert_to_aanet(shake(CifarResNet(1, 4)), blocks=("all", "scaling", "frozen"))
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}
    model.train()
    for module in model.modules():
        module.train()
    model(x)
    moved = {
        name
        for name, b in model.named_buffers()
        if name in before and not torch.equal(b, before[name])
    }
    frozen = {name for name in before if ".branches.2." in name or name.startswith("bn1")}
    assert frozen
    assert moved == set(before) - frozen


def test_parameter_groups_keep_weight_decay_off_phi():
    model = convert_to_aanet(CifarResNet(1, 4))
    decayed, free = parameter_groups(model, lr=0.1, weight_decay=5e-4)
    deltas = {id(p) for name, p in model.named_parameters() if name.endswith("delta")}
    assert {id(p) for p in free["params"]} == deltas
    assert (decayed["weight_decay"], free["weight_decay"]) == (5e-4, 0)
    assert {id(p) for p in decayed["params"]} | deltas == {id(p) for p in model.parameters()}
    optimizer = torch.optim.SGD([decayed, free], momentum=0.9)
    for delta in free["params"]:
        delta.data.fill_(0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    head = model.fc.weight.detach().clone()
    optimizer.step()
    assert all((delta == 0.5).all() for delta in free["params"])
    assert not torch.equal(model.fc.weight, head)  # the control: what decays, decays


@pytest.mark.parametrize("way", ["in the optimizer", "in the loss"])
def test_weight_decay_pulls_the_stable_branch_to_the_base(way, x):
    model = convert_to_aanet(shake(CifarResNet(1, 4))).eval()
    layers = list(scaled_layers(model))
    base = [layer._buffers["weight"].clone() for layer in layers]
    for layer in layers:
        layer.delta.data.uniform_(-0.5, 0.5)
    start = [layer.weight.detach() for layer in layers]
    decay = 0.5 if way == "in the optimizer" else 0.0
    optimizer = torch.optim.SGD([layer.delta for layer in layers], lr=0.1, weight_decay=decay)
    for _ in range(100):
        optimizer.zero_grad()
        penalty = 0.0 if decay else 0.25
        (penalty * sum(p.square().sum() for p in model.parameters())).backward()
        optimizer.step()
    for layer, before, theta in zip(layers, start, base, strict=True):
        assert relative_error(before, theta) > 0.1
        assert relative_error(layer.weight, theta) < 0.01  # 0.95 to the 100th is 0.006
    # The control: with φ itself as the parameter, the same decay leaves nothing of the branch.
    phi = nn.Parameter(torch.ones_like(layers[0].delta))
    optimizer = torch.optim.SGD([phi], lr=0.1, weight_decay=0.5)
    for _ in range(100):
        phi.grad = torch.zeros_like(phi)
        optimizer.step()
    assert (base[0] * phi).norm() < 0.01 * base[0].norm()


def test_a_state_dict_with_phi_is_loaded(x):
    model, other = (convert_to_aanet(CifarResNet(1, 4)).eval() for _ in range(2))
    train_a_little(model, x)
    model.eval()
    state = model.state_dict()
    earlier = {
        key.replace("delta", "phi"): value + 1 if key.endswith("delta") else value
        for key, value in state.items()
    }
    assert sum(key.endswith("phi") for key in earlier) == len(list(scaled_layers(model))) > 0
    copies = {key: value.clone() for key, value in earlier.items()}
    other.load_state_dict(earlier)
    torch.testing.assert_close(other(x), model(x))
    assert earlier.keys() == copies.keys()
    assert all(torch.equal(value, earlier[key]) for key, value in copies.items())
    torch.testing.assert_close(other.state_dict(), state)


def test_phi_is_read_only():
    layer = nn.Conv2d(2, 2, 3)
    scale(layer)
    with pytest.raises(AttributeError):
        layer.phi = layer.phi.detach()


def test_parameter_groups_of_a_plain_network_are_one_group():
    model = CifarResNet(1, 4)
    (group,) = parameter_groups(model, weight_decay=1e-4)
    assert len(group["params"]) == len(list(model.parameters()))
    assert "lr" not in group


@pytest.mark.parametrize("stem", ["stable", "plastic", "paired"])
@pytest.mark.parametrize("blocks", [("all", "scaling"), ("scaling", "frozen"), ("frozen",)])
def test_the_base_phase_is_the_plain_network(blocks, stem, x):
    plain = shake(CifarResNet(1, 4))
    model = CifarResNet(1, 4)
    model.load_state_dict(plain.state_dict())
    thaw_base(convert_to_aanet(model, blocks=blocks, stem=stem))
    assert all(len(level.branches) == 1 and level.alpha is None for level in levels(model))
    shapes = sorted(tuple(p.shape) for p in model.parameters())
    assert shapes == sorted(tuple(p.shape) for p in plain.parameters())
    for net in (model, plain):
        train_a_little(net, x)
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)

    trained = model.eval()(x)
    plastic = {id(p) for level in levels(model) for p in level.parameters()}
    freeze_base(model)
    torch.testing.assert_close(model(x), trained)
    if blocks[0] == "all":
        assert plastic <= {id(p) for level in levels(model) for p in level.parameters()}
    assert all(level.alpha.tolist() == [1 / len(blocks)] * len(blocks) for level in levels(model))


def test_freezing_again_makes_the_trained_network_the_new_base(x):
    model = convert_to_aanet(CifarResNet(1, 4))
    train_a_little(model, x)
    model.eval()
    with torch.no_grad():
        for level in levels(model):
            level.alpha.copy_(torch.tensor([1.0, 0.0]))
    plastic_alone = model(x)
    freeze_base(model)
    assert all(p.eq(0).all() for name, p in model.named_parameters() if name.endswith("delta"))
    assert all(level.alpha.tolist() == [0.5, 0.5] for level in levels(model))
    torch.testing.assert_close(model(x), plastic_alone)


def test_absorbing_phi_keeps_the_function_and_resets_phi(x):
    model = convert_to_aanet(shake(CifarResNet(1, 4)))
    train_a_little(model, x)
    model.eval()
    before, delta = model(x), model.layer1.stable[0].conv1.delta
    base = model.layer1.stable[0].conv1._buffers["weight"].clone()
    absorb(model)
    assert model.layer1.stable[0].conv1.delta is delta
    assert delta.eq(0).all()
    assert not torch.equal(model.layer1.stable[0].conv1._buffers["weight"], base)
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize("change", [freeze_base, thaw_base])
def test_a_plain_network_has_no_base_to_change(change):
    with pytest.raises(UnsupportedModelError, match="convert_to_aanet"):
        change(CifarResNet(1, 4))
