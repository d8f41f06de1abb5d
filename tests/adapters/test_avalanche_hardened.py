"""Avalanche: trainings that diverge, settings that cannot be, and what the user froze."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("avalanche")

from avalanche.training.supervised import Naive

from aanets_plugin import ConfigurationError, NonFiniteLossError, levels
from aanets_plugin.adapters.avalanche import LUCIR, AANetPlugin
from tests.adapters.avalanche_setup import Network, digits, make, train
from tests.adapters.test_avalanche_baselines import build

pytestmark = pytest.mark.avalanche


@pytest.mark.parametrize("experience", [0, 1])
@pytest.mark.parametrize(
    ("strategy", "plugins"), [(Naive, [AANetPlugin]), (LUCIR, []), (LUCIR, [AANetPlugin])]
)
def test_a_training_that_diverges_is_stopped(strategy, plugins, experience):
    options = {"plugins": [plugin() for plugin in plugins]}
    made = build(strategy, **options) if strategy is LUCIR else make(strategy, Network(), **options)
    strategy = train(made, experience)
    for group in strategy.optimizer.param_groups:
        group["lr"] = math.inf
    with pytest.raises(NonFiniteLossError, match="ower the learning rate"):
        strategy.train(digits().train_stream[experience])


def test_two_plugins_are_refused_before_the_model_is_converted():
    strategy = make(Naive, Network(), plugins=[AANetPlugin(), AANetPlugin()])
    with pytest.raises(ConfigurationError, match="several AANetPlugins"):
        train(strategy, 1)
    assert not levels(strategy.model)


WRONG = {
    "blocks": "all",
    "alpha": [None, 1],
    "lr": "0.1",
    "schedule": "cosine",
    "loss_fn": "cross_entropy",
    "base_phase": None,
    "per_class": math.nan,
    "batch_size": [8],
    "update_base": "yes",
}


@pytest.mark.parametrize("name", WRONG)
def test_an_option_of_a_wrong_type_is_refused_when_the_plugin_is_made(name):
    with pytest.raises(ConfigurationError, match=rf"^{name}="):
        AANetPlugin(**{name: WRONG[name]})


def test_what_the_user_froze_stays_frozen_in_every_experience():
    network = Network()
    network.requires_grad_(False)
    network.classifier.requires_grad_(True)
    strategy = make(Naive, network, plugins=[AANetPlugin()])
    kernel = network.feature_extractor.conv1.weight.detach().clone()
    for experience in range(2):
        strategy.train(digits().train_stream[experience])
        learning = {name for name, p in strategy.model.named_parameters() if p.requires_grad}
        assert learning == {"classifier.weight", "classifier.bias"}
    assert (strategy.model.feature_extractor.conv1.weight == kernel).all()
