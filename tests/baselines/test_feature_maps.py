"""Maps of the stages: which, in what order, and with what left behind in the model."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from aanets_plugin import convert_to_aanet, levels
from aanets_plugin.baselines import CifarResNet, pod_spatial, stage_maps
from aanets_plugin.errors import UnsupportedModelError
from tests.networks import AttentionNet, HeadOverDictNet, InPlaceNet, shake

X = (2, 3, 8, 8)


def hooks(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def two_branches():
    """A converted model whose branches differ, so that an aggregated map is neither's."""
    model = convert_to_aanet(shake(HeadOverDictNet()))
    with torch.no_grad():
        for level in levels(model):
            for parameter in level.plastic.parameters():
                parameter.add_(0.1)
    return model.eval()


@pytest.mark.parametrize("build", [HeadOverDictNet, two_branches])
def test_the_maps_are_what_the_stages_give_out_in_forward_order(build):
    model = build().eval()
    x = torch.randn(X)
    with stage_maps(model) as maps:
        output = model(x)
    assert [tuple(m.shape) for m in maps] == [(2, 4, 8, 8), (2, 8, 4, 4), (2, 8, 2, 2)]
    assert all(torch.equal(m, f) for m, f in zip(maps, output["fmaps"], strict=True))
    assert not torch.equal(maps[0], model(x + 1)["fmaps"][0])


def test_the_maps_of_a_level_are_aggregated():
    model = two_branches()
    inputs = []
    levels(model)[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0].clone()))
    with stage_maps(model) as maps:
        model(torch.randn(X))
    plastic = levels(model)[0].plastic(inputs[0].clone())
    stable = levels(model)[0].stable(inputs[0].clone())
    torch.testing.assert_close(maps[0], 0.5 * plastic + 0.5 * stable)
    assert not torch.allclose(maps[0], plastic)


def test_a_stage_that_gives_a_list_and_x_counts_with_x():
    model = AttentionNet().eval()
    x = torch.randn(X)
    given = []
    model.stage_2.register_forward_hook(lambda _, args, output: given.append(output[1]))
    with stage_maps(model) as maps:
        model(x)
    assert len(maps) == 4
    assert torch.equal(maps[1], given[0])


def test_a_next_stage_that_writes_into_its_input_does_not_change_the_map():
    model = InPlaceNet().eval()
    with stage_maps(model) as maps:
        model(torch.randn(X))
    assert (maps[0] < 0).any()  # layer1 ends without a ReLU, layer2 begins with one in place


def test_each_forward_replaces_the_maps_of_the_one_before():
    model = HeadOverDictNet().eval()
    first, second = torch.randn(2, *X)
    with stage_maps(model) as maps:
        model(first)
        output = model(second)
        assert len(maps) == 3
        assert torch.equal(maps[2], output["fmaps"][2])


def test_the_forward_is_the_same_with_and_without():
    model = HeadOverDictNet().eval()
    x = torch.randn(X)
    plain = model(x)["logits"]
    with stage_maps(model):
        assert torch.equal(model(x)["logits"], plain)


def test_the_hooks_are_gone_afterwards_and_after_an_error():
    model = HeadOverDictNet()
    with stage_maps(model):
        assert hooks(model) == 3
    assert hooks(model) == 0
    with pytest.raises(KeyError), stage_maps(model):
        raise KeyError("from inside the block")
    assert hooks(model) == 0


def test_a_hook_of_the_host_stays():
    model = HeadOverDictNet()
    model.convnet.stage_1.register_forward_hook(lambda *_: None)
    with stage_maps(model):
        pass
    assert hooks(model) == 1


@pytest.mark.parametrize("convert", [False, True])
def test_a_deepcopied_teacher_has_maps_of_its_own(convert):
    model = CifarResNet(1, 5)
    if convert:
        convert_to_aanet(model)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    x = torch.randn(X)
    with stage_maps(model) as maps, stage_maps(teacher) as teacher_maps:
        model(x)
        teacher(x)
    pod_spatial(maps, teacher_maps).backward()
    assert len(maps) == len(teacher_maps) == 3
    assert model.layer1[0].conv1.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in teacher.parameters())


def test_a_copy_made_inside_the_block_does_not_write_into_the_list():
    model = HeadOverDictNet().eval()
    x = torch.randn(X)
    with stage_maps(model) as maps:
        output = model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(x + 1)
        assert torch.equal(maps[0], output["fmaps"][0])


def test_a_network_without_stages_is_refused():
    with pytest.raises(UnsupportedModelError, match="Sequential"), stage_maps(nn.Sequential()):
        pass


def test_a_stage_without_a_tensor_is_refused():
    model = HeadOverDictNet()
    model.convnet.stage_2.register_forward_hook(lambda *_: "nothing")
    with stage_maps(model), pytest.raises(UnsupportedModelError, match="stage 1 returns a str"):
        model(torch.randn(X))
