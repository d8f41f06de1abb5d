"""The order of phases, and what each does to the network."""

from __future__ import annotations

import warnings
from copy import deepcopy

import pytest
import torch

from aanets_plugin import (
    BilevelStrategy,
    ConfigurationError,
    NonFiniteLossError,
    PhaseError,
    UnsupportedModelError,
    convert_to_aanet,
    freeze_base,
    levels,
    load_plain_state_dict,
)
from aanets_plugin.baselines import CifarResNet
from aanets_plugin.scaling import scaled_layers
from tests.core.alpha_setup import (
    ROUNDING,
    Untouchable,
    aanet,
    alphas,
    loader,
    samples,
    started,
    train,
    wander,
)
from tests.networks import relative_error, shake


def test_phases_go_from_one_branch_to_a_frozen_base_to_learned_weights():
    model = aanet()
    plain = sum(p.numel() for p in shake(CifarResNet(1, 5)).parameters())
    bilevel = BilevelStrategy(model)
    bilevel.begin_phase()
    assert all(level.alpha is None and len(level.branches) == 1 for level in levels(model))
    assert sum(p.numel() for p in model.parameters()) == plain
    assert bilevel.after_epoch() is None
    bilevel.end_phase()
    assert all(level.base_frozen and len(level.branches) == 2 for level in levels(model))
    assert (alphas(model) == 0.5).all()
    bilevel.begin_phase()
    wander(model)
    assert bilevel.after_epoch(loader()) > 0
    assert (alphas(model) != 0.5).all()
    records = [(r.phase, r.epoch, r.level) for r in bilevel.history]
    assert records == [(1, 0, "layer1"), (1, 0, "layer2"), (1, 0, "layer3")]


def test_a_cancelled_phase_leaves_the_base_as_it_is_and_its_number_to_the_next():
    model = aanet()
    bilevel = BilevelStrategy(model)
    for _ in range(2):
        bilevel.begin_phase()
        bilevel.cancel_phase()
    assert all(level.alpha is None and len(level.branches) == 1 for level in levels(model))
    bilevel.begin_phase()
    assert bilevel.in_base_phase
    assert bilevel.phase_index == 0
    bilevel.end_phase()
    with pytest.raises(PhaseError, match="outside a phase"):
        bilevel.cancel_phase()


def test_the_end_of_phase_0_makes_the_trained_network_the_frozen_base():
    model, (x, _) = aanet(), samples()
    bilevel = BilevelStrategy(model)
    bilevel.begin_phase()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.eval()
    before = model(x)
    bilevel.end_phase()
    assert relative_error(model(x), before) < ROUNDING
    for level in levels(model):
        kernel = level.stable[0].conv1._buffers["weight"]
        assert torch.equal(kernel, level.plastic[0].conv1.weight)
        assert "weight" not in level.stable[0].conv1._parameters


def test_the_end_of_a_later_phase_freezes_nothing_anew():
    """The control for phase 0: the stable branch stays what it was, not what the plastic one is."""
    model = aanet()
    bilevel = started(model)
    bilevel.after_epoch(loader())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bilevel.end_phase()
    bilevel.begin_phase()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def loaded_by_the_strategy(trained):
    resumed = BilevelStrategy(aanet())
    resumed.model.load_state_dict(trained.state_dict())
    return resumed


def loaded_before(trained):
    model = aanet()
    model.load_state_dict(trained.state_dict())
    return BilevelStrategy(model)


@pytest.mark.parametrize(
    "resume",
    [loaded_by_the_strategy, loaded_before, lambda trained: BilevelStrategy(deepcopy(trained))],
    ids=["into a strategy's model", "before the strategy is made", "copied"],
)
def test_a_trained_model_whose_base_is_frozen_is_not_in_its_base_phase(resume):
    trained = aanet()
    bilevel = BilevelStrategy(trained)
    with bilevel.phase():
        train(trained, torch.optim.SGD(trained.parameters(), lr=0.05))
    with bilevel.phase():
        wander(trained)
        bilevel.after_epoch(loader())

    resumed = resume(trained)
    resumed.begin_phase()
    assert not resumed.in_base_phase
    resumed.end_phase()
    state = resumed.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in trained.state_dict().items())
    assert (alphas(resumed.model) != 0.5).all()


def test_a_model_that_was_only_converted_is_in_its_base_phase():
    plain = shake(CifarResNet(1, 5)).double()
    model = convert_to_aanet(CifarResNet(1, 5).double())
    load_plain_state_dict(model, plain.state_dict())
    for each in (model, aanet()):
        bilevel = BilevelStrategy(each)
        assert bilevel.in_base_phase
        assert levels(each)[0].alpha is None
    freeze_base(model)
    assert not BilevelStrategy(model).in_base_phase


def test_without_a_base_phase_the_first_phase_is_incremental():
    model = aanet()
    bilevel = BilevelStrategy(model, base_phase=False)
    assert all(len(level.branches) == 2 for level in levels(model))
    bilevel.begin_phase()
    assert bilevel.after_epoch(loader()) > 0
    assert {record.phase for record in bilevel.history} == {0}


def test_without_a_base_phase_a_thawed_model_is_frozen_as_it_is():
    model = aanet()
    BilevelStrategy(model)
    assert levels(model)[0].alpha is None
    BilevelStrategy(model, base_phase=False)
    assert (alphas(model) == 0.5).all()


def test_the_base_phase_has_epochs_but_no_history():
    bilevel = BilevelStrategy(aanet())
    bilevel.begin_phase()
    for epochs in (1, 2):
        assert bilevel.after_epoch(Untouchable()) is None
        assert bilevel.epoch == epochs
    assert bilevel.history == []


@pytest.mark.parametrize("update_base", [True, False])
def test_update_base_absorbs_phi_and_keeps_the_function(update_base):
    model, (x, _) = aanet().eval(), samples()
    bilevel = started(model, update_base=update_base)
    bilevel.after_epoch(loader())
    kernels = [layer._buffers["weight"] for layer in scaled_layers(model)]
    kernels_before = [kernel.clone() for kernel in kernels]
    phi_before = [layer.phi.detach().clone() for layer in scaled_layers(model)]
    before = model(x)
    bilevel.end_phase()
    assert relative_error(model(x), before) < ROUNDING
    for layer, kernel, phi in zip(scaled_layers(model), kernels_before, phi_before, strict=True):
        now = layer._buffers["weight"]
        assert not torch.equal(phi, torch.ones_like(phi))
        if update_base:
            assert torch.equal(layer.phi, torch.ones_like(phi))
            assert torch.equal(now, kernel * phi)
        else:
            assert torch.equal(layer.phi, phi)
            assert torch.equal(now, kernel)


@pytest.mark.parametrize(
    ("before", "call", "advice"),
    [
        ([], "after_epoch", r"after_epoch\(\) was called outside a phase. Call begin_phase\(\)"),
        ([], "end_phase", r"end_phase\(\) was called outside a phase. Call begin_phase\(\)"),
        (["begin_phase"], "begin_phase", r"Phase 0 has not ended. Call end_phase\(\) first"),
        (["begin_phase", "end_phase"], "end_phase", r"Call begin_phase\(\) first"),
        (["begin_phase", "end_phase"], "after_epoch", r"Call begin_phase\(\) first"),
    ],
)
def test_calls_out_of_order_say_what_to_call(before, call, advice):
    bilevel = BilevelStrategy(aanet())
    for name in before:
        getattr(bilevel, name)()
    with pytest.raises(PhaseError, match=advice):
        getattr(bilevel, call)()


def test_a_plain_network_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"no adaptive levels.*convert_to_aanet"):
        BilevelStrategy(CifarResNet(1, 5))


def test_an_incremental_phase_needs_the_balanced_loader():
    with pytest.raises(ConfigurationError, match="needs a balanced loader"):
        started(aanet()).after_epoch()


def test_an_empty_loader_is_refused_and_counts_as_no_epoch():
    model = aanet()
    bilevel, before = started(model), alphas(model)
    with pytest.raises(ConfigurationError, match="has no batch"):
        bilevel.after_epoch([])
    assert bilevel.epoch == 0
    assert bilevel.history == []
    assert torch.equal(alphas(model), before)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -0.1},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"momentum": 1.0},
        {"momentum": -0.5},
        {"momentum": float("nan")},
        {"max_batches": 0},
    ],
    ids=str,
)
def test_options_outside_their_range_are_quoted_and_leave_the_model_alone(options):
    model = aanet()
    (name, value), *_ = options.items()
    with pytest.raises(ConfigurationError, match=f"{name}={value}"):
        BilevelStrategy(model, **options)
    assert len(levels(model)[0].branches) == 2
    BilevelStrategy(model, **{name: 1 if name == "max_batches" else 0.5})


@pytest.mark.parametrize(
    ("convert", "options"),
    [({}, {"lr": 0}), ({"blocks": ("all",)}, {})],
    ids=["lr=0", "one branch"],
)
def test_where_alpha_cannot_move_no_data_is_read_and_history_still_grows(convert, options):
    model = aanet(**convert)
    bilevel, before = started(model, **options), alphas(model)
    for _ in range(2):
        assert bilevel.after_epoch(Untouchable()) is None
    assert torch.equal(alphas(model), before)
    assert [(r.epoch, r.loss) for r in bilevel.history] == [(0, None)] * 3 + [(1, None)] * 3
    assert bilevel.history[0].weights == tuple(before[: len(levels(model)[0].blocks)].tolist())
    with pytest.raises(AssertionError, match="asked for its batches"):
        started(aanet()).after_epoch(Untouchable())  # the control: a learning α does read it


@pytest.mark.parametrize("early", [True, False], ids=["too early", "in time"])
def test_an_optimizer_built_before_phi_exists_is_noticed(early):
    model = aanet()
    bilevel = BilevelStrategy(model)
    bilevel.begin_phase()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer)
    bilevel.end_phase()
    bilevel.begin_phase()
    if not early:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bilevel.after_epoch(loader())
        bilevel.after_epoch(loader())
        bilevel.end_phase()
    noticed = ["φ did not move in the first epoch of phase 1" in str(w.message) for w in caught]
    assert noticed == ([True] if early else [])
    assert all(w.filename == __file__ for w in caught)


@pytest.mark.parametrize("update_base", [True, False])
def test_a_phase_without_training_is_not_a_wrong_optimizer(update_base):
    model = aanet()
    bilevel = BilevelStrategy(model, update_base=update_base)
    with bilevel.phase():
        bilevel.after_epoch()
    with bilevel.phase():
        bilevel.after_epoch(loader())
    with bilevel.phase():
        train(model, torch.optim.SGD(model.parameters(), lr=0.05))
        bilevel.after_epoch(loader())
    with bilevel.phase():
        bilevel.after_epoch(loader())


@pytest.mark.parametrize("value", [-200.0, 50.0])
def test_an_absurd_phi_is_noticed_once_in_a_phase(value):
    model = aanet()
    bilevel = started(model, lr=0)
    next(scaled_layers(model)).delta.data[0] = value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bilevel.after_epoch()
        bilevel.after_epoch()
        bilevel.end_phase()
        bilevel.begin_phase()
        bilevel.end_phase()
    noticed = [str(w.message) for w in caught if "φ is up to" in str(w.message)]
    assert len(noticed) == (0 if value == 50 else 2)
    assert all("gradients of φ, so they add up" in text for text in noticed)
    assert all(w.filename == __file__ for w in caught)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_phi_that_is_not_finite_is_an_error_even_if_alpha_is_fixed(value):
    model = aanet()
    bilevel = started(model, lr=0)
    next(scaled_layers(model)).delta.data[0] = value
    with pytest.raises(NonFiniteLossError, match="delta has values that are NaN or infinite"):
        bilevel.after_epoch()


def test_a_with_block_is_a_phase():
    model = aanet()
    bilevel = BilevelStrategy(model)
    with bilevel.phase() as entered:
        assert entered is bilevel
        assert bilevel.in_phase
        assert not levels(model)[0].base_frozen
    assert not bilevel.in_phase
    assert levels(model)[0].base_frozen
    with bilevel.phase():
        train(model, torch.optim.SGD(model.parameters(), lr=0.05))
        bilevel.after_epoch(loader())
    assert bilevel.phase_index == 1
    assert {record.phase for record in bilevel.history} == {1}


def test_an_error_in_a_with_block_leaves_the_phase_open_and_the_base_trainable():
    model = aanet()
    bilevel = BilevelStrategy(model)
    with pytest.raises(KeyError), bilevel.phase():
        raise KeyError
    assert bilevel.in_phase
    assert not levels(model)[0].base_frozen
    with pytest.raises(PhaseError):
        bilevel.begin_phase()


def test_a_network_that_was_trained_as_phase_0_begins_with_phase_1():
    model = aanet()
    bilevel = BilevelStrategy(model, base_phase=False, first_phase=1)
    assert levels(model)[0].base_frozen
    with bilevel.phase():
        train(model, torch.optim.SGD(model.parameters(), lr=0.05))
        bilevel.after_epoch(loader())
    assert {record.phase for record in bilevel.history} == {1}
