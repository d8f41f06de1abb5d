"""AANetPlugin in Avalanche's loop: phases, fresh networks, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("avalanche")

from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.models import FeatureExtractorBackbone, SimpleMLP
from avalanche.training.supervised import (
    CWRStar,
    FeatureReplay,
    FromScratchTraining,
    GDumb,
    LearningToPrompt,
    LwF,
    Naive,
    Replay,
    StreamingLDA,
)
from torch import nn

from aanets_plugin import (
    AANetError,
    ConfigurationError,
    UnsupportedModelError,
    convert_to_aanet,
    levels,
)
from aanets_plugin.adapters.avalanche import (
    AANetPlugin,
    UnsupportedStrategyError,
)
from aanets_plugin.scaling import scaled_layers
from tests.adapters.avalanche_setup import (
    CLASSES,
    Network,
    alphas,
    assert_alpha_moved,
    digits,
    make,
    outputs,
    phi,
    train,
)

pytestmark = pytest.mark.avalanche


# -- phases --------------------------------------------------------------------------------------


def test_the_first_experience_trains_the_plain_network():
    plain, aanet = Network(), Network()
    aanet.load_state_dict(plain.state_dict())
    strategies = [make(Naive, plain), make(Naive, aanet, plugins=[AANetPlugin()])]

    results = []
    for strategy in strategies:
        torch.manual_seed(1)
        results.append([outputs(train(strategy, 1).model)])
        strategy.train(digits().train_stream[1])
        results[-1].append(outputs(strategy.model))

    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(results[0][1], results[1][1]), "the second differs"


def test_one_call_of_train_is_the_same_as_one_per_experience():
    histories = []
    for seed, at_once in ((1, True), (1, False), (2, False)):
        torch.manual_seed(seed)
        strategy = make(Replay, Network(), mem_size=12, plugins=[plugin := AANetPlugin()])
        if at_once:
            strategy.train(digits().train_stream)
        else:
            train(strategy)
        histories.append(plugin.bilevel.history)

    assert len(histories[0]) == 2 * 2 * 2  # experiences, epochs, levels
    assert histories[0] == histories[1]
    assert histories[1] != histories[2]


def test_alpha_updates_leave_the_random_numbers_of_the_strategy_alone():
    states = []
    for lr in (0.03, 0.0):
        torch.manual_seed(1)
        train(make(Replay, Network(), mem_size=12, plugins=[AANetPlugin(lr=lr)]), 2)
        states.append(torch.get_rng_state())

    assert torch.equal(*states)
    torch.rand(1)
    assert not torch.equal(states[0], torch.get_rng_state())


def test_a_pretrained_base_learns_alpha_from_the_first_experience():
    strategy = make(Naive, Network(), plugins=[plugin := AANetPlugin(base_phase=False)])
    base = levels(convert_to_aanet(copy.deepcopy(strategy.model)))[0].stable.state_dict()
    train(strategy)

    assert_alpha_moved(plugin, {0, 1, 2})
    stable = levels(strategy.model)[0].stable.state_dict()
    assert torch.equal(stable["0.conv.weight"], base["0.conv.weight"])
    assert not torch.equal(stable["0.conv.delta"], base["0.conv.delta"])


def test_a_model_that_is_converted_already_keeps_its_levels():
    model = convert_to_aanet(Network(), stem="paired", alpha=(0.7, 0.3))
    strategy = train(make(Naive, model, plugins=[plugin := AANetPlugin()]))

    assert strategy.model is model
    assert levels(model)[0].initial_alpha == (0.7, 0.3)
    assert_alpha_moved(plugin, {1, 2})


def test_the_options_reach_conversion_and_updates():
    plugin = AANetPlugin(blocks=("all", "all", "frozen"), stages=["feature_extractor.layer2"], lr=0)
    strategy = train(make(Naive, Network(), plugins=[plugin]), 2)

    assert [level.name for level in levels(strategy.model)] == ["feature_extractor.layer2"]
    assert alphas(strategy.model) == [pytest.approx([1 / 3] * 3)]
    assert [record.loss for record in plugin.bilevel.history] == [None, None]


def test_the_base_can_follow_phi():
    kernels = []
    for update_base in (True, False):
        strategy = make(Naive, Network(), plugins=[AANetPlugin(update_base=update_base)])
        train(strategy, 1)
        before = next(scaled_layers(strategy.model))._buffers["weight"].clone()
        strategy.train(digits().train_stream[1])
        layer = next(scaled_layers(strategy.model))
        kernels.append(torch.equal(layer._buffers["weight"], before))
        assert bool((layer.phi == 1).all()) == update_base

    assert kernels == [False, True]


def test_the_teacher_of_lwf_is_the_network_of_the_experience_before():
    strategy = train(make(LwF, Network(), alpha=1.0, temperature=2.0, plugins=[AANetPlugin()]), 1)
    teacher = strategy.plugins[1].lwf.prev_model

    assert torch.equal(outputs(teacher), outputs(strategy.model))
    kept = outputs(teacher)
    strategy.plugins[1].after_training_exp = lambda *args, **kwargs: None
    strategy.train(digits().train_stream[1])
    assert torch.equal(outputs(teacher), kept)
    assert not torch.equal(outputs(strategy.model), kept)


@pytest.mark.parametrize("size", [5, 6], ids=["parts of one size", "a smaller last part"])
def test_in_an_online_stream_alpha_learns_once_per_experience(size):
    strategy = make(Naive, Network(), plugins=[plugin := AANetPlugin()], train_epochs=1)
    stream = digits().train_stream
    for part in split_online_stream(stream, experience_size=size, access_task_boundaries=True):
        strategy.train(part, eval_streams=[])

    assert_alpha_moved(plugin, {1, 2})
    assert len(plugin.bilevel.history) == 2 * 2  # experiences, levels


def test_an_online_stream_without_boundaries_is_refused():
    stream = split_online_stream(digits().train_stream, experience_size=5)
    with pytest.raises(UnsupportedStrategyError, match="access_task_boundaries=True"):
        make(Naive, Network(), plugins=[AANetPlugin()]).train(next(iter(stream)))


# -- strategies that begin with a fresh network --------------------------------------------------


class AtStart:
    """Copies the model as each experience begins to train it."""

    def __init__(self) -> None:
        self.models: list[Any] = []

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        if strategy.clock.train_exp_epochs == 0:
            self.models.append(copy.deepcopy(strategy.model))


@pytest.mark.parametrize("strategy", [GDumb, FromScratchTraining])
def test_what_starts_anew_is_the_plastic_side(strategy):
    options = {"mem_size": 30} if strategy is GDumb else {}
    model = Network()
    initial = model.feature_extractor.layer1[0].conv.weight.detach().clone()
    made = make(strategy, model, plugins=[AANetPlugin(), start := AtStart()], **options)
    train(made, 1)
    base = levels(made.model)[0].plastic[0].conv.weight.detach().clone()
    stem = made.model.feature_extractor.conv1._buffers["weight"].clone()
    for experience in digits().train_stream[1:]:
        made.train(experience)

    assert not torch.equal(initial, base)
    for begun in start.models[1:]:
        level = levels(begun)[0]
        assert torch.equal(level.plastic[0].conv.weight, initial)
        assert torch.equal(level.stable[0].conv._buffers["weight"], base)
        assert torch.equal(begun.feature_extractor.conv1._buffers["weight"], stem)
        assert bool((phi(begun) == 1).all())
    assert bool((phi(made.model) != 1).any())


# -- what does not work --------------------------------------------------------------------------


def refused(strategy: Any) -> str:
    """The error of training, after a check that it came before anything was changed."""
    model = strategy.model
    before = {name: id(p) for name, p in model.named_parameters()}
    with pytest.raises(AANetError) as error:
        strategy.train(digits().train_stream[0])
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert not levels(model)
    return f"{type(error.value).__name__}: {error.value}"


@pytest.mark.parametrize("option", [{"lr": -1.0}, {"momentum": 1.0}, {"max_batches": 0}], ids=str)
def test_what_alpha_cannot_learn_with_is_refused_before_there_is_a_model(option):
    (name,) = option
    with pytest.raises(ConfigurationError, match=name):
        AANetPlugin(**option)


def test_models_without_stages_are_refused():
    message = refused(make(Naive, SimpleMLP(input_size=64), plugins=[AANetPlugin()]))
    assert message.startswith("UnsupportedModelError: SimpleMLP has no residual stage")
    assert issubclass(UnsupportedModelError, AANetError)


def test_strategies_in_which_nothing_would_learn_are_refused():
    plugins = [AANetPlugin()]
    feature_replay = make(FeatureReplay, Network(), plugins=plugins)
    lda = StreamingLDA(
        slda_model=FeatureExtractorBackbone(Network(), "feature_extractor"),
        criterion=nn.CrossEntropyLoss(),
        input_size=8,
        num_classes=CLASSES,
        plugins=plugins,
        evaluator=None,
    )
    prompts = LearningToPrompt(
        model_name="simpleMLP", use_cls_features=False, plugins=plugins, evaluator=None
    )
    cwr = make(CWRStar, Network(), cwr_layer_name="classifier", plugins=plugins)
    for strategy in (feature_replay, lda, prompts, cwr):
        name = type(strategy).__name__
        assert f"UnsupportedStrategyError: {name} cannot use AANetPlugin" in refused(strategy)
    assert levels(train(make(Naive, Network(), plugins=[AANetPlugin()]), 1).model)


def test_a_plugin_belongs_to_one_strategy():
    plugin = AANetPlugin()
    train(make(Naive, Network(), plugins=[plugin]), 1)
    with pytest.raises(ConfigurationError, match="make one for each"):
        train(make(Naive, Network(), plugins=[plugin]), 1)


def test_a_plugin_is_found_by_its_strategy():
    with pytest.raises(ConfigurationError, match="before training begins"):
        AANetPlugin().bilevel  # noqa: B018
    with pytest.raises(ConfigurationError, match=r"Pass plugins=\[AANetPlugin\(\)\]"):
        AANetPlugin.of(make(Naive, Network()))
    plugin = AANetPlugin()
    assert AANetPlugin.of(make(Naive, Network(), plugins=[plugin])) is plugin
