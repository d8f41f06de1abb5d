"""History and state of the upper level."""

from __future__ import annotations

import csv

import pytest
import torch

from aanets_plugin import (
    BilevelStrategy,
    ConfigurationError,
    convert_to_aanet,
    levels,
)
from aanets_plugin.baselines import CifarResNet
from tests.core.alpha_setup import aanet, alphas, gradients_of, loader, started, wander
from tests.networks import HeadOverDictNet

STRATEGIES = {
    "default": lambda model: BilevelStrategy(model),
    "momentum": lambda model: BilevelStrategy(model, momentum=0.9),
    "official": lambda model: BilevelStrategy.official(model, lr=1e-4),
}


def interrupted(kind):
    """A strategy after two updates of phase 1, φ and η having moved."""
    model = aanet()
    bilevel = STRATEGIES[kind](model)
    bilevel.begin_phase()
    bilevel.end_phase()
    bilevel.begin_phase()
    wander(model)
    for _ in range(2):
        bilevel.after_epoch(loader())
    return bilevel


def resumed_from(whole, kind, folder, *, model_first=True):
    """A fresh model and a fresh strategy with the states of `whole`, by way of a file."""
    torch.save({"net": whole.model.state_dict(), "up": whole.state_dict()}, folder / "last.pt")
    saved = torch.load(folder / "last.pt", weights_only=True)
    torch.manual_seed(99)
    resumed = STRATEGIES[kind](convert_to_aanet(CifarResNet(1, 5).double()))
    loads = [(resumed.model, saved["net"]), (resumed, saved["up"])]
    for target, state in loads if model_first else reversed(loads):
        target.load_state_dict(state)
    return resumed


@pytest.mark.parametrize("model_first", [True, False], ids=["model first", "strategy first"])
@pytest.mark.parametrize(
    "kind",
    [
        "default",
        "momentum",
        "official",
    ],
)
def test_a_resumed_phase_goes_on_to_the_bit(kind, model_first, tmp_path):
    whole = interrupted(kind)
    resumed = resumed_from(whole, kind, tmp_path, model_first=model_first)
    assert torch.equal(alphas(resumed.model), alphas(whole.model))
    assert resumed.history == whole.history
    for _ in range(3):
        whole.after_epoch(loader())
        resumed.after_epoch(loader())
        assert torch.equal(alphas(resumed.model), alphas(whole.model))
    assert resumed.history == whole.history
    assert (resumed.phase_index, resumed.epoch, resumed.in_phase) == (1, 5, True)


def test_the_first_gradient_of_a_resumed_network_is_the_same_to_the_bit(tmp_path):
    whole = interrupted("default")
    resumed = resumed_from(whole, "default", tmp_path)
    for expected, actual in zip(
        gradients_of(whole, loader())[1], gradients_of(resumed, loader())[1], strict=True
    ):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("kind", ["default", "momentum", "official"])
def test_the_model_alone_does_not_resume_a_phase(kind):
    """The control: the strategy's own state is needed."""
    whole = interrupted(kind)
    fresh = STRATEGIES[kind](aanet())
    fresh.model.load_state_dict(whole.model.state_dict())
    fresh.phase_index, fresh.in_phase = 1, True
    for _ in range(2):
        whole.after_epoch(loader())
        fresh.after_epoch(loader())
    assert not torch.equal(alphas(fresh.model), alphas(whole.model))


def test_a_resumed_official_phase_collects_the_gradient_of_the_host_again():
    whole = interrupted("official")
    resumed = STRATEGIES["official"](aanet())
    resumed.model.load_state_dict(whole.model.state_dict())
    resumed.load_state_dict(whole.state_dict())
    assert all(level.alpha.requires_grad for level in levels(whole.model))
    assert all(level.alpha.requires_grad for level in levels(resumed.model))


def test_a_resumed_base_phase_is_a_base_phase():
    whole = BilevelStrategy(aanet())
    whole.begin_phase()
    whole.after_epoch()
    resumed = BilevelStrategy(aanet())
    resumed.load_state_dict(whole.state_dict())
    resumed.model.load_state_dict(whole.model.state_dict())
    assert resumed.epoch == 1
    assert levels(resumed.model)[0].alpha is None
    resumed.end_phase()
    assert (alphas(resumed.model) == 0.5).all()


def test_the_state_of_another_model_is_refused():
    bilevel = started(aanet())
    foreign = started(convert_to_aanet(HeadOverDictNet().double()))
    with pytest.raises(ConfigurationError, match=r"convnet\.stage_1.*this model has.*layer1"):
        bilevel.load_state_dict(foreign.state_dict())
    bilevel.load_state_dict(started(aanet()).state_dict())


def test_a_csv_file_holds_the_history(tmp_path):
    bilevel = started(aanet())
    for _ in range(2):
        bilevel.after_epoch(loader())
    bilevel.lr = 0
    bilevel.after_epoch()
    bilevel.to_csv(tmp_path / "alpha.csv")
    with open(tmp_path / "alpha.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["phase", "epoch", "level", "loss", "alpha_0", "alpha_1"]
    read = [
        (
            int(row["phase"]),
            int(row["epoch"]),
            row["level"],
            (float(row["alpha_0"]), float(row["alpha_1"])),
            float(row["loss"]) if row["loss"] else None,
        )
        for row in rows
    ]
    assert read == [(r.phase, r.epoch, r.level, r.weights, r.loss) for r in bilevel.history]
    assert len(read) == 9
    assert [row[4] for row in read[6:]] == [None] * 3
