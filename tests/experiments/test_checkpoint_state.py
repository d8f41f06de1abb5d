"""The state of a converted model after loading a checkpoint."""

from __future__ import annotations

import pytest
import torch

from aanets_plugin import convert_to_aanet, levels, thaw_base
from aanets_plugin.baselines import CifarResNet

BLOCKS = [("all", "scaling"), ("all", "frozen")]


def converted(blocks):
    return convert_to_aanet(CifarResNet(1, 5), blocks=blocks)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_loading_parameters_alone_leaves_the_state_as_it_is(blocks):
    net = converted(blocks)
    kept = {name: parameter.detach() + 1 for name, parameter in net.named_parameters()}
    net.load_state_dict(kept, strict=False)

    assert all(level.base_frozen for level in levels(net))
    assert all(torch.equal(p, kept[name]) for name, p in net.named_parameters())


@pytest.mark.parametrize("blocks", BLOCKS)
def test_loading_a_whole_state_of_the_base_phase_goes_back_to_it(blocks):
    base, net = converted(blocks), converted(blocks)
    thaw_base(base)
    net.load_state_dict(base.state_dict(), strict=False)

    assert not any(level.base_frozen for level in levels(net))
