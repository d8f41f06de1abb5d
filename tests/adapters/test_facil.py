"""with_aanets on approaches with FACIL's joints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import UnsupportedModelError, levels
from aanets_plugin.adapters.facil import with_aanets
from tests.adapters.hosts_setup import EPOCHS, FACILApproach, Watched, run_facil

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


def test_what_is_not_an_approach_is_refused():
    with pytest.raises(UnsupportedModelError, match="not a FACIL approach"):
        with_aanets(nn.Linear(2, 2))
