"""A converted network can be copied, pickled, saved and loaded as any other."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from aanets_plugin import ConfigurationError, convert_to_aanet, levels, thaw_base
from aanets_plugin.baselines import CifarResNet
from tests.core.hosts_setup import (
    BLOCKS,
    DEFAULT,
    STEMS,
    changed,
    converted,
    every_kind,
    gradients,
    images,
    learn,
    loss_of,
    snapshot,
    vary,
)
from tests.networks import HeadOverDictNet, relative_error, tensors

# Copies


def through_pickle(net, path):
    return pickle.loads(pickle.dumps(net))


def through_a_file(net, path):
    torch.save(net, path / "net.pt")
    return torch.load(path / "net.pt", weights_only=False)


def through_deepcopy(net, path):
    return copy.deepcopy(net)


every_copy = pytest.mark.parametrize("way", [through_deepcopy, through_pickle, through_a_file])


@every_kind
@every_copy
def test_a_copy_computes_the_same_and_is_independent(way, options, tmp_path):
    net, x = converted(**options).eval(), images()
    other = way(net, tmp_path)
    assert type(other) is type(net)
    assert [type(m) for m in other.modules()] == [type(m) for m in net.modules()]
    assert dict(other.named_parameters()).keys() == dict(net.named_parameters()).keys()
    assert torch.equal(other(x), net(x))

    expected, before = net(x), snapshot(net)
    learn(other.train(), x)
    assert not torch.equal(other.eval()(x), expected)
    assert torch.equal(net(x), expected)
    assert not changed(net, before)


@every_copy
def test_a_copy_goes_between_the_states_without_the_original(way, tmp_path):
    net = converted(**DEFAULT)
    base = way(net, tmp_path)
    thaw_base(base)
    other = way(net, tmp_path)
    before = snapshot(net)
    other.load_state_dict(base.state_dict())
    assert not levels(other)[0].base_frozen
    assert levels(net)[0].base_frozen
    assert not changed(net, before)


@every_kind
def test_a_teacher_stays_what_it_was_while_the_student_learns(options):
    net, x = converted(**options).train(), images()
    teacher = copy.deepcopy(net)
    for parameter in teacher.parameters():
        parameter.requires_grad = False
    teacher.eval()
    said, before = teacher(x), snapshot(teacher)
    assert not said.requires_grad

    for _ in range(2):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        (loss_of(net(x)) + (net(x) - teacher(x)).square().mean()).backward()
        optimizer.step()
    assert torch.equal(teacher(x), said)
    assert not changed(teacher, before)
    assert not torch.equal(net.eval()(x), said)
    assert all(p.requires_grad for p in net.parameters())


# Checkpoints


@every_kind
@pytest.mark.parametrize("file", ["torch", "safetensors"])
def test_a_state_dict_loads_into_a_fresh_network(file, options, tmp_path):
    net, x = converted(**options).eval(), images()
    if file == "torch":
        torch.save(net.state_dict(), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(net.state_dict(), tmp_path / "state.safetensors")
        state = safetensors.load_file(tmp_path / "state.safetensors")
    fresh = convert_to_aanet(CifarResNet(1, 5), **options).eval()
    assert relative_error(fresh(x), net(x)) > 0.1
    fresh.load_state_dict(state, strict=True)
    assert torch.equal(fresh(x), net(x))
    assert not changed(fresh, net.state_dict())


@pytest.mark.parametrize("make", [lambda: CifarResNet(1, 5), HeadOverDictNet], ids=["bare", "head"])
@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("blocks", BLOCKS, ids="+".join)
def test_a_checkpoint_puts_a_network_in_the_state_it_was_saved_in(blocks, stem, make):
    options, x = {"blocks": blocks, "stem": stem}, images()
    frozen = converted(make, **options).eval()
    base = converted(make, **options).eval()
    thaw_base(base)
    vary(base)

    for source, target in [(base, frozen), (frozen, base)]:
        source, target = copy.deepcopy(source), copy.deepcopy(target)
        in_base = not levels(source)[0].base_frozen
        assert all(level.base_frozen == in_base for level in levels(target))
        assert target.state_dict().keys() != source.state_dict().keys() or blocks == ("frozen",)
        assert relative_error(target(x), source(x)) > 1e-3
        target.load_state_dict(source.state_dict(), strict=True)
        assert all(level.base_frozen != in_base for level in levels(target))
        assert not changed(target, source.state_dict())
        assert dict(target.named_parameters()).keys() == dict(source.named_parameters()).keys()
        for ours, theirs in zip(tensors(target(x)), tensors(source(x)), strict=True):
            assert torch.equal(ours, theirs)
        learn(target.train(), x)
        gradients(target)


def test_a_checkpoint_of_data_parallel_loads_into_data_parallel():
    base = converted(**DEFAULT)
    thaw_base(base)
    net = nn.DataParallel(converted(**DEFAULT))
    net.load_state_dict(nn.DataParallel(base).state_dict(), strict=True)
    assert not levels(net)[0].base_frozen
    assert not changed(net.module, base.state_dict())


@pytest.mark.parametrize("strict", [True, False])
def test_a_checkpoint_of_a_plain_network_is_refused_and_leaves_the_state_alone(strict):
    net = nn.DataParallel(converted(**DEFAULT))
    before, plain = snapshot(net.module.layer1), nn.DataParallel(CifarResNet(1, 5)).state_dict()
    with pytest.raises(ConfigurationError, match=r"not con.*layer1\.0.*load_plain_state_dict"):
        net.load_state_dict(plain, strict=strict)
    net = net.module
    net.load_state_dict({"fc.weight": net.fc.weight + 1}, strict=False)  # the control: a head alone
    assert levels(net)[0].base_frozen
    assert not changed(net.layer1, before)
