"""α updates inside a training loop that nobody edits: when they come, and when they stop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aanets_plugin import (
    BilevelStrategy,
    ConfigurationError,
    PhaseError,
    convert_to_aanet,
    levels,
)
from aanets_plugin.baselines import CifarResNet


@pytest.fixture(autouse=True)
def _one_thread():
    """Networks this small only wait for a second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batch(count=4):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, 3, 8, 8, generator=generator), torch.arange(count) % 5


def fresh():
    torch.manual_seed(1)
    return convert_to_aanet(CifarResNet(1, 5))


@pytest.fixture
def model():
    return fresh()


@pytest.fixture
def bilevel(model):
    strategy = BilevelStrategy(model, base_phase=False)
    strategy.begin_phase()
    yield strategy
    strategy.detach()


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def their_train(model, optimizer, steps):
    """Training code of somebody who has never heard of α."""
    x, y = batch()
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def updates(bilevel):
    return len(bilevel.history) // len(levels(bilevel.model))


@pytest.mark.parametrize("given", [True, False], ids=["given optimizer", "any optimizer"])
@pytest.mark.parametrize(("every", "expected"), [(1, 5), (2, 2), (5, 1), (6, 0)])
def test_alpha_is_updated_after_every_so_many_steps(bilevel, optimizer, every, expected, given):
    with bilevel.attach([batch()], every=every, optimizer=optimizer if given else None):
        their_train(bilevel.model, optimizer, 5)
    assert updates(bilevel) == expected
    assert bilevel.epoch == expected


def test_an_update_comes_between_two_steps_and_not_before_the_first(bilevel, optimizer):
    seen = []
    with bilevel.attach([batch()], every=2, optimizer=optimizer):
        for _ in range(4):
            seen.append(updates(bilevel))
            their_train(bilevel.model, optimizer, 1)
    assert seen == [0, 0, 1, 1]
    assert updates(bilevel) == 2


def test_an_attached_run_is_the_run_with_calls_written_in(bilevel, optimizer):
    with bilevel.attach([batch()], every=2, optimizer=optimizer):
        their_train(bilevel.model, optimizer, 4)

    def by_hand(call):
        written = BilevelStrategy(fresh(), base_phase=False)
        written.begin_phase()
        own = torch.optim.SGD(written.model.parameters(), lr=0.05)
        for _ in range(2):
            their_train(written.model, own, 2)
            if call:
                written.after_epoch([batch()])
        return written

    written, without = by_hand(True), by_hand(False)
    state = written.model.state_dict()
    assert bilevel.history == written.history
    assert all(torch.equal(v, state[k]) for k, v in bilevel.model.state_dict().items())
    alpha, fixed = levels(bilevel.model)[0].alpha, levels(without.model)[0].alpha
    assert not torch.equal(alpha, fixed)


def test_only_the_given_optimizer_counts(bilevel, optimizer):
    other = torch.optim.SGD(bilevel.model.parameters(), lr=0.05)
    with bilevel.attach([batch()], every=1, optimizer=optimizer):
        their_train(bilevel.model, other, 3)
        assert updates(bilevel) == 0
        their_train(bilevel.model, optimizer, 1)
        assert updates(bilevel) == 1


def test_without_an_optimizer_the_first_one_that_trains_a_level_counts(bilevel, optimizer):
    head = torch.optim.SGD(bilevel.model.fc.parameters(), lr=0.05)
    elsewhere = torch.optim.SGD(fresh().parameters(), lr=0.05)
    fine_tuning = torch.optim.Adam(bilevel.model.parameters(), lr=1e-3)
    with bilevel.attach([batch()], every=2):
        their_train(bilevel.model, head, 3)
        their_train(bilevel.model, elsewhere, 3)
        assert updates(bilevel) == 0
        their_train(bilevel.model, optimizer, 2)
        assert updates(bilevel) == 1
        their_train(bilevel.model, fine_tuning, 4)
        assert updates(bilevel) == 1
        their_train(bilevel.model, optimizer, 2)
        assert updates(bilevel) == 2


def train_with_an_optimizer_per_epoch(model, epochs=3):
    for _ in range(epochs):
        their_train(model, torch.optim.SGD(model.parameters(), lr=0.05), 2)


def test_a_function_chooses_among_the_optimizers_that_train_a_level(bilevel):
    head = torch.optim.SGD(bilevel.model.fc.parameters(), lr=0.05)
    with bilevel.attach([batch()], every=2, optimizer=lambda optimizer: True):
        train_with_an_optimizer_per_epoch(bilevel.model)
        assert updates(bilevel) == 3
        their_train(bilevel.model, head, 2)
    assert updates(bilevel) == 3
    with bilevel.attach([batch()], every=2, optimizer=lambda optimizer: False) as attachment:
        train_with_an_optimizer_per_epoch(bilevel.model)
    assert updates(bilevel) == 3
    assert attachment.steps == 0


def test_an_optimizer_per_epoch_is_noticed(bilevel):
    with (
        pytest.warns(UserWarning, match=r"three optimizers.*optimizer=lambda optimizer: True") as w,
        bilevel.attach([batch()], every=2),
    ):
        train_with_an_optimizer_per_epoch(bilevel.model, epochs=5)
    assert len(w) == 1
    assert updates(bilevel) == 1


def test_an_optimizer_whose_level_parameters_are_frozen_does_not_count(bilevel, optimizer):
    for level in levels(bilevel.model):
        level.requires_grad_(False)
    with bilevel.attach([batch()], every=1):
        their_train(bilevel.model, optimizer, 2)
    assert updates(bilevel) == 0


def test_the_steps_of_an_epoch_may_be_known_only_in_the_training(bilevel, optimizer):
    asked = []

    def every():
        asked.append(True)
        return 3

    with bilevel.attach([batch()], every=every):
        assert not asked
        their_train(bilevel.model, optimizer, 6)
    assert updates(bilevel) == 2
    assert asked == [True]


def test_a_callable_is_asked_for_the_loader_at_each_update(bilevel, optimizer):
    asked = []

    def current():
        asked.append(bilevel.epoch)
        return [batch()]

    with bilevel.attach(current, every=2, optimizer=optimizer):
        assert asked == []
        their_train(bilevel.model, optimizer, 5)
    assert asked == [0, 1]
    assert updates(bilevel) == 2


def test_attaching_twice_is_refused_and_the_first_goes_on(bilevel, optimizer):
    bilevel.attach([batch()], every=1, optimizer=optimizer)
    with pytest.raises(PhaseError, match=r"Already attached. Call detach\(\)"):
        bilevel.attach([batch()], every=1, optimizer=optimizer)
    their_train(bilevel.model, optimizer, 1)
    assert updates(bilevel) == 1
    bilevel.detach()
    bilevel.attach([batch()], every=1, optimizer=optimizer)
    their_train(bilevel.model, optimizer, 1)
    assert updates(bilevel) == 2


def leave(bilevel, optimizer, given):
    with bilevel.attach([batch()], every=1, optimizer=given):
        their_train(bilevel.model, optimizer, 1)


def leave_by_exception(bilevel, optimizer, given):
    def interrupted():
        their_train(bilevel.model, optimizer, 1)
        raise KeyboardInterrupt

    attachment = bilevel.attach([batch()], every=1, optimizer=given)
    with pytest.raises(KeyboardInterrupt), attachment:
        interrupted()


def detach(bilevel, optimizer, given):
    bilevel.attach([batch()], every=1, optimizer=given)
    their_train(bilevel.model, optimizer, 1)
    bilevel.detach()


def end_phase(bilevel, optimizer, given):
    bilevel.attach([batch()], every=1, optimizer=given)
    their_train(bilevel.model, optimizer, 1)
    bilevel.end_phase()
    bilevel.begin_phase()


@pytest.mark.parametrize("given", [True, False], ids=["given optimizer", "any optimizer"])
@pytest.mark.parametrize("way", [leave, leave_by_exception, detach, end_phase])
def test_the_hook_is_gone_after(way, given, bilevel, optimizer):
    way(bilevel, optimizer, optimizer if given else None)
    assert updates(bilevel) == 1  # it was there
    their_train(bilevel.model, optimizer, 3)
    assert updates(bilevel) == 1
    with bilevel.attach([batch()], every=1):  # and there is room for another
        their_train(bilevel.model, optimizer, 1)
    assert updates(bilevel) == 2


def test_an_error_of_an_update_reaches_the_loop_and_removes_the_hook(bilevel, optimizer):
    with (
        pytest.raises(ConfigurationError, match="has no batch"),
        bilevel.attach([], every=1, optimizer=optimizer),
    ):
        their_train(bilevel.model, optimizer, 1)
    their_train(bilevel.model, optimizer, 1)
    assert updates(bilevel) == 0


def test_detaching_without_an_attachment_does_nothing(bilevel, optimizer):
    bilevel.detach()
    their_train(bilevel.model, optimizer, 1)
    assert updates(bilevel) == 0


@pytest.mark.parametrize("every", [0, -3])
def test_every_has_to_be_at_least_one(bilevel, optimizer, every):
    with pytest.raises(ConfigurationError, match=f"every={every}"):
        bilevel.attach([batch()], every=every, optimizer=optimizer)
    their_train(bilevel.model, optimizer, 2)
    assert updates(bilevel) == 0
    bilevel.attach([batch()], every=1, optimizer=optimizer)


@pytest.mark.parametrize("ended", [False, True], ids=["before the first", "after one"])
def test_attaching_outside_a_phase_is_refused(model, ended):
    bilevel = BilevelStrategy(model)
    if ended:
        bilevel.begin_phase()
        bilevel.end_phase()
    with pytest.raises(
        PhaseError, match=r"attach\(\) was called outside a phase. Call begin_phase\(\)"
    ):
        bilevel.attach([batch()], every=1)


class Untouchable:
    """A loader that nobody may look into."""

    def __iter__(self):
        raise AssertionError("the balanced loader was asked for its batches")


def test_in_the_base_phase_epochs_are_counted_and_nothing_is_learned(model):
    bilevel = BilevelStrategy(model)
    bilevel.begin_phase()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with bilevel.attach(Untouchable(), every=2, optimizer=optimizer):
        their_train(model, optimizer, 4)
    assert bilevel.epoch == 2
    assert bilevel.history == []
    assert all(level.alpha is None for level in levels(model))


def test_in_the_base_phase_a_callable_is_not_asked_for_exemplars_that_do_not_exist(model):
    bilevel = BilevelStrategy(model)
    bilevel.begin_phase()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    asked = []
    with bilevel.attach(lambda: asked.append(1), every=1, optimizer=optimizer):
        their_train(model, optimizer, 1)
    assert bilevel.epoch == 1
    assert asked == []
