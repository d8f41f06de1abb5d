"""Settings are checked when they are given, with our words."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import (
    AANetConfig,
    AANetError,
    BilevelStrategy,
    ConfigurationError,
    convert_to_aanet,
)
from tests.core.alpha_setup import aanet, labelled, loader, started
from tests.core.test_hardened_conversion import assert_unchanged, everything

WRONG = {
    "blocks": [None, 3, b"all", {"all": 1}, [["all"]], [None, "all"], math.nan],
    "stem": [None, 1, ["stable"], b"stable", math.nan],
    "stages": [3, b"layer1", [1, 2], [None], {"layer1": 1}, math.nan],
    "alpha": [0.5, "ab", b"ab", [None, 1], ["0.5", "0.5"], [True, False], {0.5: 1}, math.nan],
    "lr": ["0.1", b"1", [0.1], True, 1j, math.nan, math.inf, 10**400],
    "momentum": ["0.1", [0.1], False, math.nan],
    "normalize": [None, 1, "yes", []],
    "official": [None, 1, "yes", [], b"lucir"],
    "update_base": [None, 0, "no", math.nan],
    "schedule": ["cosine", 3, [1, 0.1], b"", math.nan],
    "max_batches": ["1", 1.0, [1], True, math.nan],
    "per_class": ["1", 2.5, [1], True, math.nan],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_a_wrong_type_is_refused_by_name(name):
    for value in WRONG[name]:
        with pytest.raises(ConfigurationError, match=rf"^{name}=") as caught:
            AANetConfig(**{name: value})
        assert str(caught.value).endswith(".")


@pytest.mark.parametrize("factor", [None, "1", -1.0, math.nan, math.inf, [1], torch.zeros(2)])
def test_a_schedule_is_tried_before_the_training(factor):
    with pytest.raises(
        ConfigurationError, match=r"^schedule\(0\) returns .*: must be a number ≥ 0"
    ):
        AANetConfig(schedule=lambda epoch: factor)


def test_a_schedule_that_fails_later_says_so_and_leaves_alpha_alone():
    model = aanet()
    bilevel = started(model, schedule=lambda epoch: 1.0 if epoch == 0 else None)
    bilevel.after_epoch(loader())
    before = everything(model)
    with pytest.raises(ConfigurationError, match=r"schedule\(1\) returns None"):
        bilevel.after_epoch(loader())
    assert_unchanged(model, before)
    assert bilevel.epoch == 1


BAD_LOSSES = {
    "no function": 3,
    "text": "cross_entropy",
    "criterion": nn.CrossEntropyLoss(),
    "functional": F.cross_entropy,
    "one argument": lambda batch: 0,
    "three arguments": lambda model, x, y: 0,
}


@pytest.mark.parametrize("name", BAD_LOSSES)
def test_a_loss_that_is_no_function_of_model_and_batch_is_refused_at_once(name):
    model = aanet()
    before = everything(model)
    with pytest.raises(ConfigurationError, match=r"^loss_fn=.*must be a function"):
        BilevelStrategy(model, loss_fn=BAD_LOSSES[name])
    assert_unchanged(model, before)
    BilevelStrategy(model, loss_fn=labelled)  # the control


@pytest.mark.parametrize(
    "options",
    [{"base_phase": None}, {"first_phase": "1"}, {"first_phase": 0.5}, {"lr": "1"}],
    ids=str,
)
def test_options_of_a_strategy_of_a_wrong_type_leave_the_model_alone(options):
    model = aanet()
    before = everything(model)
    with pytest.raises(ConfigurationError, match=rf"^{next(iter(options))}="):
        BilevelStrategy(model, **options)
    assert_unchanged(model, before)


@pytest.mark.parametrize("every", [math.nan, 0, -1, 2.5, "3", None, [1], True])
def test_an_attachment_counts_whole_steps(every):
    bilevel = started(aanet())
    with pytest.raises(ConfigurationError, match=r"^every=.*: must be an integer ≥ 1"):
        bilevel.attach(loader(), every=every)
    with bilevel.attach(loader(), every=1):  # nothing is attached
        pass


@pytest.mark.parametrize("function", [convert_to_aanet, BilevelStrategy])
@pytest.mark.parametrize("thing", [None, "resnet18", 3, [nn.ReLU()], nn.ReLU])
def test_what_is_no_module_gets_an_error_of_ours_that_is_a_type_error(function, thing):
    with pytest.raises(AANetError, match=r"must be a torch\.nn\.Module") as caught:
        function(thing)
    assert isinstance(caught.value, TypeError)
