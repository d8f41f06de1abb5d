"""Which modules become levels, and the names they have in a strategy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aanets_plugin import BilevelStrategy, ConfigurationError, convert_to_aanet, find_stages, levels
from aanets_plugin.baselines import CifarResNet
from tests.core.alpha_setup import aanet, loader, samples, started, wander
from tests.networks import Block, relative_error, shake


class TwoBackbones(nn.Module):
    """Two backbones under one head, each converted for itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.left, self.right = CifarResNet(1, 5), CifarResNet(1, 5)

    def forward(self, x):
        return self.left(x) + self.right(x)


def two_backbones():
    model = TwoBackbones().double()
    for part in (model.left, model.right):
        wander(convert_to_aanet(shake(part)))
    return model


NAMES = [f"{side}.layer{number}" for side in ("left", "right") for number in (1, 2, 3)]


@pytest.mark.parametrize("official", [False, True])
def test_levels_of_two_backbones_have_names_and_states_of_their_own(official):
    make = BilevelStrategy.official if official else BilevelStrategy
    bilevel = make(two_backbones(), base_phase=False)
    bilevel.begin_phase()
    bilevel.after_epoch(loader())
    assert [record.level for record in bilevel.history] == NAMES
    kept = bilevel.step.velocity if official else bilevel.step.squares
    assert list(kept) == NAMES
    state = bilevel.state_dict()
    assert state["levels"] == NAMES

    other = make(two_backbones(), base_phase=False)
    other.load_state_dict(state)
    assert other.history == bilevel.history
    weights = [record.weights for record in bilevel.history]
    assert weights == [tuple(level.alpha.tolist()) for level in levels(bilevel.model)]


def test_levels_of_one_backbone_keep_the_names_of_its_stages():
    bilevel = started(nn.Sequential(aanet()))
    bilevel.after_epoch(loader())
    assert [record.level for record in bilevel.history] == ["layer1", "layer2", "layer3"]


class ListNet(nn.Module):
    """A trunk, and a ModuleList whose entries are called one after the other."""

    def __init__(self, trunk=True):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 1, 1)
        self.trunk = nn.Sequential(Block(4, 4)) if trunk else nn.Identity()
        self.parts = nn.ModuleList(
            [nn.Sequential(Block(4, 4), Block(4, 4)), nn.Sequential(Block(4, 4))]
        )
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = self.trunk(self.conv(x))
        for part in self.parts:
            x = part(x)
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize("trunk", [True, False])
def test_the_entries_of_a_module_list_are_stages_and_never_the_list(trunk):
    model = shake(ListNet(trunk)).double().eval()
    expected = ["trunk"] * trunk + ["parts.0", "parts.1"]
    assert find_stages(model) == expected
    x, _ = samples()
    before = model(x)
    assert relative_error(convert_to_aanet(model)(x), before) < 1e-12
    assert len(model.parts) == 2


def test_a_module_list_with_a_forward_of_its_own_is_a_stage():
    class Row(nn.ModuleList):
        def forward(self, x):
            for block in self:
                x = block(x)
            return x

    model = nn.Sequential(nn.Conv2d(3, 4, 3), Row([Block(4, 4), Block(4, 4)]), Row([Block(4, 4)]))
    assert find_stages(model) == ["1", "2"]


def test_a_module_list_that_is_named_as_a_stage_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"'parts' is a ModuleList.*no forward.*'parts\.0'"
    ):
        convert_to_aanet(ListNet(), stages=["trunk", "parts"])
