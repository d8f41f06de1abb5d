"""A plain network's weights into a converted model, and one branch of it back."""

from __future__ import annotations

import copy

import pytest
import torch

from aanets_plugin import (
    ConfigurationError,
    UnsupportedModelError,
    convert_to_aanet,
    levels,
    load_plain_state_dict,
    thaw_base,
    to_plain,
)
from aanets_plugin.baselines import CifarResNet
from tests.core.hosts_setup import BLOCKS, STEMS, changed, converted, images, snapshot, vary
from tests.networks import NETWORKS, relative_error, shake, tensors

every_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
every_stem = pytest.mark.parametrize("stem", STEMS)
every_blocks = pytest.mark.parametrize("blocks", [*BLOCKS, ("all", "scaling", "frozen")])


def same_outputs(first, second, x):
    pairs = zip(tensors(first(x.clone())), tensors(second(x.clone())), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@every_network
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "base"])
def test_the_state_of_a_plain_network_becomes_theta_base(make, frozen):
    plain, net, x = shake(make()).eval(), converted(make).eval(), images()
    if not frozen:
        thaw_base(net)
    assert relative_error(net(x.clone()), plain(x.clone())) > 1e-2
    load_plain_state_dict(net, plain.state_dict())
    assert all(level.base_frozen == frozen for level in levels(net))
    # float32: α-weighted sums of equal branches
    assert relative_error(net(x.clone()), plain(x.clone())) < 1e-5
    reference = convert_to_aanet(copy.deepcopy(plain))
    if not frozen:
        thaw_base(reference)
    assert not changed(net, reference.state_dict())


@every_stem
@every_blocks
def test_what_is_loaded_does_not_depend_on_blocks_and_stem(blocks, stem):
    plain, net = shake(CifarResNet(1, 5)), converted(blocks=blocks, stem=stem)
    load_plain_state_dict(net, plain.state_dict())
    assert not changed(net, convert_to_aanet(plain, blocks=blocks, stem=stem).state_dict())


@every_network
def test_a_plain_copy_is_the_network_before_the_conversion(make):
    plain, x = shake(make()).eval(), images()
    net = convert_to_aanet(copy.deepcopy(plain))
    for branch in ("plastic", "stable"):
        back = to_plain(net, branch)
        assert not levels(back)
        assert [type(m) for m in back.modules()] == [type(m) for m in plain.modules()]
        assert not changed(back, plain.state_dict())
        assert same_outputs(back, plain, x)
        assert [n for n, _ in back.named_parameters()] == [n for n, _ in plain.named_parameters()]
        back.load_state_dict(plain.state_dict())
        convert_to_aanet(back)


@every_stem
@every_blocks
def test_a_plain_copy_computes_its_branch_with_phi_multiplied_in(blocks, stem):
    net, x = converted(blocks=blocks, stem=stem).eval(), images()
    before, expected = snapshot(net), net(x)
    for index, branch in ((0, "plastic"), (-1, "stable")):
        alone = copy.deepcopy(net)
        for level in levels(alone):  # the reference: α that lets only this branch through
            level.alpha.zero_()
            level.alpha[index] = 1
        # float32: a sum with zeros
        assert relative_error(to_plain(net, branch)(x), alone(x)) < 1e-5
    if len(blocks) > 1:
        assert relative_error(to_plain(net, "plastic")(x), to_plain(net, "stable")(x)) > 1e-3
    assert not changed(net, before)
    vary(to_plain(net))
    assert torch.equal(net(x), expected)


def test_in_the_base_phase_both_branches_are_the_same():
    net, x = converted().eval(), images()
    thaw_base(net)
    assert torch.equal(to_plain(net, "plastic")(x), net(x))
    assert torch.equal(to_plain(net, "stable")(x), net(x))


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    net, plain = converted(), CifarResNet(1, 5).state_dict()
    before = snapshot(net)
    wrong = {
        r"only here: conv1\.weight, bn1\.bias\.": {
            k: v for k, v in plain.items() if k not in ("conv1.weight", "bn1.bias")
        },
        r"only there: extra": {**plain, "extra": torch.zeros(1)},
        r"fc\.weight: \[7, 64\] there, \[5, 64\] here": CifarResNet(1, 7).state_dict(),
        r"model\.load_state_dict": net.state_dict(),
    }
    for message, state in wrong.items():
        with pytest.raises(ConfigurationError, match=message):
            load_plain_state_dict(net, state)
    with pytest.raises(ConfigurationError, match=r"fc\.weight"):
        load_plain_state_dict(net, CifarResNet(1, 7).state_dict(), strict=False)
    assert not changed(net, before)
    del plain["fc.weight"]
    load_plain_state_dict(net, plain, strict=False)
    assert {"fc.weight", "fc.sigma"} & changed(net, before) == {"fc.sigma"}


def test_what_is_not_converted_or_not_a_branch_is_refused():
    net = CifarResNet(1, 5)
    for function in (lambda: to_plain(net), lambda: load_plain_state_dict(net, net.state_dict())):
        with pytest.raises(UnsupportedModelError, match="convert_to_aanet"):
            function()
    with pytest.raises(ConfigurationError, match=r"branch='frozen'.*'plastic' or 'stable'"):
        to_plain(converted(), "frozen")
