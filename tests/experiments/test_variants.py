"""Variants of a run and the fair controls, and the table of what they cost."""

from __future__ import annotations

import csv

import pytest
import torch
from torchvision.models import resnet18

from aanets_plugin import AANetConfig, ConfigurationError, convert_to_aanet, levels
from aanets_plugin.baselines import LUCIR, resnet20
from aanets_plugin.budget import Profile
from aanets_plugin.experiments import Arm, Memory, Result, Training, compare
from aanets_plugin.experiments.arms import control_arms
from aanets_plugin.experiments.costs import Measured, cost_of, costs_csv, costs_table
from aanets_plugin.experiments.datasets import scenarios
from aanets_plugin.experiments.variants import CONTROLS, VARIANTS, Shared
from tests.experiments.run_setup import EXEMPLARS, TRAINING, digits, network

SHARED = Shared(resnet20, Memory(), Training(epochs=5, base_epochs=30), 100, (3, 32, 32))


def settings(name, shared=SHARED):
    return shared.settings(LUCIR(), VARIANTS[name])


def test_equal_memory_is_more_exemplars_by_as_many_as_a_strict_budget_has_less():
    """ResNet-20 on 100 classes: 16 exemplars with AANets, so 24 for the plain network."""
    assert settings("memory").memory.per_class == 24
    assert settings("memory").aanets is None
    strict, plain = (cost_of(settings(name), 100, (3, 32, 32)) for name in ("strict", "plain"))
    assert strict.exemplar_bytes == 16 * 100 * 3072
    assert strict.memory < plain.memory
    in_total = Shared(resnet20, Memory(total=2000), Training(), 100, (3, 32, 32))
    assert 2300 < settings("memory", in_total).memory.total < 2400


def test_equal_compute_is_more_epochs_in_later_phases_alone():
    training = settings("compute").training
    assert (training.epochs_of(0), training.epochs_of(1)) == (30, 11)


def test_the_wider_network_has_as_many_parameters_as_aanets_and_not_more():
    wider, learned = (cost_of(settings(n), 100, (3, 32, 32)) for n in ("wider", "learned"))
    assert 0.9 * learned.parameters < wider.parameters <= 1.01 * learned.parameters
    assert settings("wider").backbone().conv1.out_channels > 16


def test_a_network_that_cannot_be_made_wider_is_refused():
    shared = Shared(resnet18, Memory(), Training(), 100, (3, 64, 64))
    with pytest.raises(ConfigurationError, match="wider: ResNet cannot be made wider"):
        settings("wider", shared)


def test_an_unknown_control_is_refused():
    with pytest.raises(ConfigurationError, match="control 'more': must be one of memory, compute"):
        control_arms(["more"], LUCIR(), SHARED)


def test_a_budget_that_leaves_no_exemplar_is_refused():
    shared = Shared(resnet20, Memory(per_class=1), Training(), 10, (3, 8, 8))
    with pytest.raises(ConfigurationError, match="leave no exemplar"):
        settings("memory", shared)


def test_variants_keep_the_other_options_of_aanets():
    shared = Shared(resnet20, Memory(), Training(), 100, (3, 32, 32), AANetConfig(stem="paired"))
    assert settings("fixed", shared).aanets == AANetConfig(stem="paired", lr=0.0)
    assert settings("official", shared).aanets.lr == 1e-8


@pytest.mark.parametrize(("blocks", "equal"), [("all_all", True), ("learned", False)])
def test_branches_of_the_same_type_stay_equal(blocks, equal):
    """Which is why α is fixed in these rows, and what the notes of the tables say."""
    torch.manual_seed(0)
    net = convert_to_aanet(network(), **settings(blocks).aanets.conversion)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        net(torch.randn(8, 3, 8, 8)).square().sum().backward()
        optimizer.step()
    first, second = (branch.state_dict() for branch in levels(net)[0].branches)
    same = [torch.equal(first[key], second[key]) for key in first if key in second]
    assert all(same) == equal


COST = Profile(1000, 2000, 3000, 8000, 2**20)


def measured(arm, new, seconds=60.0, seed=0):
    metrics = {"average": 60.0, "all": 50.0, "old": 40.0, "base": 45.0, "forgetting": 5.0}
    phases = [{**metrics, "new": value} for value in new]
    return Measured(Result(arm, seed, [2, 4, 6], phases), COST, seconds)


def test_the_table_has_intransigence_and_cost_beside_the_accuracy():
    runs = [measured("plain", [90, 70, 60]), measured("upper bound", [90, 80, 90], None)]
    rows = list(csv.DictReader(costs_csv(runs, "head").splitlines()))
    assert [float(row["intransigence"]) for row in rows] == [20.0, 0.0]
    assert [row["seconds"] for row in rows] == ["60.0", ""]
    assert rows[0]["memory"] == str(8000 + 2**20)
    table = costs_table(runs, "head")
    assert "| 20.00 |" in " ".join(table.split())
    assert "1K" in table


def test_without_joint_training_of_the_same_seed_there_is_no_intransigence():
    runs = [measured("plain", [90, 70, 60]), measured("upper bound", [90, 80, 90], seed=1)]
    first, _ = csv.DictReader(costs_csv(runs, "head").splitlines())
    assert first["intransigence"] == ""


@pytest.mark.slow
def test_controls_are_arms_of_a_comparison(tmp_path):
    train, test = scenarios(digits(), base_classes=8, phases=1)
    shared = Shared(network, Memory(per_class=EXEMPLARS), TRAINING, 10, (3, 8, 8))
    arms = {"plain": Arm(LUCIR()), **control_arms(["compute", "wider"], LUCIR(), shared)}
    results = compare(
        train,
        test,
        network,
        arms,
        output=tmp_path,
        memory=shared.memory,
        training=TRAINING,
        progress=False,
    )
    labels = ["plain", "plain, equal compute", "plain, wider network"]
    assert [result.arm for result in results] == labels
    has_first_phase = [(tmp_path / f"{arm}-0/checkpoint/base.pt").exists() for arm in arms]
    assert has_first_phase == [True, False, True]  # the wider network cannot share it
    rows = list(csv.DictReader((tmp_path / "costs.csv").read_text().splitlines()))
    assert [row["arm"] for row in rows] == labels
    assert int(rows[2]["parameters"]) > 1.5 * int(rows[0]["parameters"])
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert set(CONTROLS) > set(arms) - {"plain"}
