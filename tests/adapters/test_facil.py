"""with_aanets on approaches with FACIL's joints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import UnsupportedModelError, levels
from aanets_plugin.adapters.facil import with_aanets
from tests.adapters.facil_setup import FACILApproach, run_facil
from tests.adapters.hosts_setup import EPOCHS, Watched
from tests.networks import Block

# The memories of the stand-ins have 3 or 4 samples of a class.
pytestmark = pytest.mark.filterwarnings("ignore:.*have fewer than 5 samples")


def seeded(**options):
    np.random.seed(1)
    torch.manual_seed(1)
    return FACILApproach(**options)


def alphas(approach):
    return [level.alpha.tolist() for level in levels(approach.model)]


@pytest.mark.parametrize("exemplars", [True, False])
def test_alpha_learns_after_each_main_epoch_of_later_tasks(exemplars):
    approach = seeded(exemplars=exemplars)
    assert with_aanets(approach) is approach
    watched = Watched(approach)
    run_facil(approach)
    watched.assert_balanced([EPOCHS + 1, EPOCHS + 1])
    assert approach.bilevel.epoch == EPOCHS + 1
    assert all(weights != [0.5, 0.5] for weights in alphas(approach))


def test_the_first_task_is_the_plain_approachs_to_the_bit():
    plain, approach = run_facil(seeded(), 1), run_facil(with_aanets(seeded()), 1)
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(plain.model.eval()(x)[0], approach.model.eval()(x)[0])


def test_where_the_host_goes_back_to_its_best_epoch_alpha_goes_back_with_it():
    approach = with_aanets(seeded(back_to=1))
    sums, after_epoch = [], approach.bilevel.after_epoch

    def watched(loader=None):
        after_epoch(loader)
        sums.append(approach.bilevel.step.squares.get("layer1"))

    approach.bilevel.after_epoch = watched
    run_facil(approach, 2)
    last = approach.bilevel.history[-3:]
    assert [record.epoch for record in last] == [1, 1, 1]
    assert [list(record.weights) for record in last] == alphas(approach)
    assert approach.bilevel.step.squares["layer1"] == sums[-2] != sums[-1]
    assert approach.bilevel.epoch == EPOCHS + 1


def test_the_loss_is_over_all_heads_with_the_correction_of_the_approach():
    approach = run_facil(with_aanets(seeded()), 2)
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 4
    logits = torch.cat(approach.model.eval()(x), dim=1)
    plain = approach.bilevel.loss_fn(approach.model, (x, y))
    approach.bias_forward = lambda heads: [head * 2 for head in heads]
    corrected = approach.bilevel.loss_fn(approach.model, (x, y))
    assert torch.allclose(plain, F.cross_entropy(logits, y))
    assert torch.allclose(corrected, F.cross_entropy(2 * logits, y))
    assert not torch.allclose(plain, corrected)


def test_a_block_that_the_host_replaces_in_the_first_task_is_in_both_branches():
    approach = run_facil(with_aanets(seeded()), 1)
    level = levels(approach.model)[-1]
    assert [branch[-1].relu for branch in level.branches] == [False, False]


@pytest.mark.parametrize("kind", ["ewc", "si"])
def test_importances_are_of_the_parameters_that_there_are(kind):
    approach = run_facil(with_aanets(seeded(kind=kind)), 2)
    parameters = dict(approach.model.model.named_parameters())
    for values in (approach.importance, approach.older_params, approach.w):
        assert {n: v.shape for n, v in values.items()} == {
            n: p.shape for n, p in parameters.items()
        }
    for name, value in approach.importance.items():
        assert value.abs().sum() > 0, name
    assert max(float(v.max()) for v in approach.importance.values()) < 100


def test_importances_of_the_first_task_go_with_their_parameters():
    """A parameter of the plastic branch has those that it has without AANets; a new one has 0."""
    plain = run_facil(seeded(kind="si"), 1)
    approach = run_facil(with_aanets(seeded(kind="si")), 1)
    plastic = {n.replace("branches.0.", ""): v for n, v in approach.importance.items()}
    compared = plastic.keys() & plain.importance.keys()
    assert len(compared) > 10
    assert all(torch.equal(plastic[name], plain.importance[name]) for name in compared)
    new = {n: v for n, v in approach.importance.items() if "branches.1." in n}
    assert new
    assert all((value == 0).all() for value in new.values())


def test_an_approach_that_trains_new_networks_is_refused_untouched():
    approach = seeded()
    approach.model_new = None
    keys = list(approach.model.state_dict())
    with pytest.raises(UnsupportedModelError, match="no earlier network to be stable"):
        with_aanets(approach)
    assert list(approach.model.state_dict()) == keys
    assert not hasattr(approach, "bilevel")


def test_a_saved_model_goes_into_a_new_approach():
    approach = run_facil(with_aanets(seeded()), 2)
    fresh = with_aanets(seeded())
    for _ in range(2):
        fresh.model.heads.append(nn.Linear(8, 2))
    fresh.model.model.layer3[-1] = Block(8, 8, 2, relu=False)
    fresh.model.load_state_dict(approach.model.get_copy())
    x = torch.randn(4, 3, 8, 8)
    outputs = [torch.cat(a.model.eval()(x), dim=1) for a in (approach, fresh)]
    assert torch.equal(*outputs)
    assert fresh.bilevel.history == approach.bilevel.history


def test_what_is_not_an_approach_is_refused():
    with pytest.raises(UnsupportedModelError, match="not a FACIL approach"):
        with_aanets(nn.Linear(2, 2))
