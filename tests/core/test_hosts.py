"""Code that reaches into a network, or sweeps over it, can do so with a converted one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from aanets_plugin import freeze_base, levels, thaw_base
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
    snapshot,
    vary,
)
from tests.networks import relative_error

# Reaching into it


def test_a_hook_on_the_head_sees_the_features():
    net, x = converted(**DEFAULT).eval(), images()
    seen = []
    handle = net.fc.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    net(x)
    handle.remove()
    net(x)
    assert len(seen) == 1
    assert torch.equal(seen[0], net.features(x))


@every_kind
def test_a_hook_on_a_level_sees_the_sum_of_its_branches(options):
    net, x = converted(**options).eval(), images()
    level, seen = net.layer2, {}
    for key, module in {"level": level, "plastic": level.plastic, "stable": level.stable}.items():
        module.register_forward_hook(lambda m, args, output, key=key: seen.update({key: output}))
    net(x)
    a, b = level.alpha
    # float32, one product and one sum
    assert relative_error(seen["level"], a * seen["plastic"] + b * seen["stable"]) < 1e-6
    assert relative_error(seen["level"], seen["plastic"]) > 1e-3
    assert relative_error(seen["level"], seen["stable"]) > 1e-3


@every_kind
def test_all_children_but_the_head_give_the_features(options):
    net, x = converted(**options).eval(), images()
    trunk = nn.Sequential(*list(net.children())[:-1])
    assert torch.equal(trunk(x).flatten(1), net.features(x))
    assert relative_error(trunk(x.flip(0)).flatten(1), net.features(x)) > 1e-2


def test_an_index_gives_a_block_of_the_plastic_branch():
    net = converted(lambda: CifarResNet(2, 5), **DEFAULT)
    assert net.layer3[-1] is net.layer3.branches[0][1]
    assert net.layer3[0] is net.layer3.branches[0][0]
    assert net.layer3[-1] is not net.layer3.stable[-1]
    with pytest.raises(IndexError):
        net.layer3[2]


@pytest.mark.parametrize("index", [slice(None, -1), slice(None), (0, 1), "0"], ids=str)
def test_a_slice_of_a_level_is_refused(index):
    net = converted(**DEFAULT)
    with pytest.raises(TypeError, match=r"layer3\[.*stable"):
        net.layer3[index]


def test_iterating_over_a_level_gives_the_level():
    net = converted(lambda: CifarResNet(2, 5), **DEFAULT).eval()
    assert list(net.layer3) == [net.layer3]
    x = torch.randn(2, 32, 16, 16)
    expected = net.layer3(x)
    assert torch.equal(nn.Sequential(*net.layer3)(x), expected)
    assert relative_error(net.layer3.plastic(x), expected) > 1e-3


def test_a_block_can_be_replaced_only_while_theta_base_is_being_trained():
    net, x = converted(lambda: CifarResNet(2, 5), **DEFAULT).eval(), images()
    block = copy.deepcopy(net.layer3[-1])
    expected = net(x)
    with pytest.raises(TypeError, match=r"layer3\[-1\].*frozen"):
        net.layer3[-1] = block
    assert torch.equal(net(x), expected)

    thaw_base(net)
    expected = net(x)
    vary(block)
    net.layer3[-1] = block
    assert net.layer3[-1] is block
    replaced = net(x)
    assert relative_error(replaced, expected) > 1e-3
    freeze_base(net)
    assert net.layer3[-1] is block
    # float32, sum of two equal halves
    assert relative_error(net(x), replaced) < 1e-5


# Sweeps over parameters and modules


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize(
    "blocks",
    [*BLOCKS, ("all", "frozen"), ("all", "all"), ("all", "scaling", "frozen")],
    ids="+".join,
)
def test_an_optimizer_over_all_parameters_moves_them_and_nothing_else(blocks, stem):
    net, x = converted(blocks=blocks, stem=stem).train(), images()
    before, names = snapshot(net), {name for name, _ in net.named_parameters()}
    learn(net, x, steps=2, weight_decay=0.1, momentum=0.9)
    gradients(net)
    moved = changed(net, before)
    assert names <= moved
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert all(name.rpartition(".")[2] in statistics for name in moved - names)
    assert any(name.endswith("alpha") for name in before.keys() - moved)
    assert sum("alpha" in name for name in before) == 3
    if "frozen" in blocks:  # all of the last branch stays, its statistics included
        last = f"layer2.branches.{len(blocks) - 1}."
        assert not any(name.startswith(last) for name in moved)
        assert any(name.startswith(last) and "running" in name for name in before)


def test_modules_put_in_train_mode_one_by_one_leave_frozen_statistics_alone():
    net, x = converted(blocks=("all", "frozen"), stem="paired").eval(), images()
    before = snapshot(net)
    for module in net.modules():
        module.train()
    net(x)
    moved = changed(net, before)
    assert moved == {
        name for name in before if ".branches.0." in name and ("running" in name or "num_b" in name)
    }
    assert len(moved) == 9 * 3  # mean, variance and count of each BatchNorm of the plastic branch


def test_train_and_eval_of_the_whole_network_leave_frozen_branches_in_eval_mode():
    net = converted(blocks=("all", "frozen")).train()
    for level in levels(net):
        assert all(module.training for module in level.plastic.modules())
        assert not any(module.training for module in level.stable.modules())
    thaw_base(net)
    assert all(module.training for module in net.modules())
