"""AANetConfig: one place for options, from which everything else takes its defaults."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from aanets_plugin import AANetConfig, BilevelStrategy, ConfigurationError, convert_to_aanet, levels
from aanets_plugin.alpha_step import NormalizedStep, PlainStep
from aanets_plugin.baselines import CifarResNet
from aanets_plugin.official import OfficialBilevel


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        AANetConfig().lr = 1.0


@pytest.mark.parametrize("function", [convert_to_aanet, BilevelStrategy])
def test_functions_take_their_defaults_from_the_config(function):
    defaults = dataclasses.asdict(AANetConfig())
    parameters = inspect.signature(function).parameters
    shared = defaults.keys() & parameters.keys()
    assert len(shared) >= 4
    for name in shared:
        assert parameters[name].default == defaults[name], name


def test_the_config_covers_every_option_of_the_conversion_and_of_the_update():
    config = AANetConfig()
    own = {"model", "loss_fn", "base_phase", "first_phase"}
    assert config.conversion.keys() == inspect.signature(convert_to_aanet).parameters.keys() - own
    assert config.learning.keys() == inspect.signature(BilevelStrategy).parameters.keys() - own


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"blocks": "all"}, "blocks='all'"),
        ({"blocks": ()}, "there is no branch"),
        ({"blocks": ("all", "some")}, "'some' is not a block type"),
        ({"stem": "none"}, "stem='none': must be 'stable', 'plastic' or 'paired'"),
        ({"stages": "layer1"}, r"Pass \['layer1'\]"),
        ({"stages": []}, "must name at least one module"),
        ({"alpha": (0.5, 0.6)}, "sum to 1.1"),
        ({"alpha": (1.0,)}, "must be 2 weights"),
        ({"lr": -0.1}, "lr=-0.1: must be a number ≥ 0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"momentum": 1.0}, r"momentum=1.0: must be a number ≥ 0 and < 1"),
        ({"max_batches": 0}, "max_batches=0: must be an integer ≥ 1"),
        ({"per_class": 2.5}, "per_class=2.5: must be an integer ≥ 1"),
        ({"official": True, "blocks": ("all",)}, "needs two branches"),
    ],
)
def test_a_bad_value_is_refused_when_the_config_is_made(options, text):
    with pytest.raises(ConfigurationError, match=text) as caught:
        AANetConfig(**options)
    assert str(caught.value).endswith(".")


def test_the_official_update_has_the_authors_defaults_unless_others_are_given():
    official = AANetConfig(official=True)
    assert (official.lr, official.momentum, official.normalize) == (1e-8, 0.9, False)
    assert AANetConfig(official=True, lr=0.1).lr == 0.1
    plain = AANetConfig()
    assert (plain.lr, plain.momentum, plain.normalize) == (0.03, 0.0, True)


def test_a_model_and_a_strategy_are_made_from_a_config():
    config = AANetConfig(
        blocks=("all", "frozen"), stages=["layer2"], alpha=(0.7, 0.3), lr=0.2, normalize=False
    )
    model = convert_to_aanet(CifarResNet(1, 4), **config.conversion)
    assert [(level.name, level.blocks) for level in levels(model)] == [("layer2", config.blocks)]
    assert levels(model)[0].alpha.tolist() == pytest.approx([0.7, 0.3])

    bilevel = BilevelStrategy.from_config(model, config, base_phase=False)
    assert bilevel.lr == 0.2
    assert type(bilevel.step) is PlainStep
    assert type(BilevelStrategy.from_config(model, AANetConfig()).step) is NormalizedStep


def test_the_config_chooses_the_official_update():
    model = convert_to_aanet(CifarResNet(1, 4))
    bilevel = BilevelStrategy.from_config(model, AANetConfig(official=True))
    assert isinstance(bilevel, OfficialBilevel)
    assert bilevel.lr == 1e-8
    assert not isinstance(BilevelStrategy.from_config(model, AANetConfig()), OfficialBilevel)
