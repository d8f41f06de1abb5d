"""α in Avalanche's loggers, under Avalanche's names."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("avalanche")
pytest.importorskip("tensorboard")

from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.logging import InteractiveLogger, TensorboardLogger, TextLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aanets_plugin import ConfigurationError, plot_alpha
from aanets_plugin.adapters.avalanche import AANetPlugin, AlphaCSVLogger, alpha_metrics
from tests.adapters.avalanche_setup import Network, digits, make

pytestmark = pytest.mark.avalanche

PLASTIC = "Alpha_Plastic_Epoch/train_phase/train_stream/Task000/feature_extractor.layer1"
STABLE = "Alpha_Stable_Epoch/train_phase/train_stream/Task000/feature_extractor.layer1"
ACCURACY = "Top1_Acc_Epoch/train_phase/train_stream/Task000"


def train(*loggers: Any, **options: Any) -> tuple[Any, AANetPlugin]:
    evaluator = EvaluationPlugin(
        accuracy_metrics(epoch=True), alpha_metrics(), loggers=list(loggers)
    )
    plugin = AANetPlugin(**options)
    strategy = make(Naive, Network(), plugins=[plugin], evaluator=evaluator)
    for experience in digits(per_class=4).train_stream[:2]:
        strategy.train(experience)
    return strategy, plugin


def expected(plugin: AANetPlugin, branch: int = 0) -> list[float]:
    history = plugin.bilevel.history
    return [r.weights[branch] for r in history if r.level == "feature_extractor.layer1"]


def test_text_loggers_print_alpha_beside_the_accuracy(tmp_path, capsys):
    with (tmp_path / "log.txt").open("w") as file:
        _, plugin = train(TextLogger(file), InteractiveLogger())

    for text in ((tmp_path / "log.txt").read_text(), capsys.readouterr().out):
        base, later = text.split("-- >> Start of training phase << --")[1:]
        assert ACCURACY in base
        assert ACCURACY in later
        assert "Alpha" not in base
        assert f"{STABLE} = " in later
        for value in expected(plugin):
            assert f"{PLASTIC} = {value:.4f}" in later


def test_csv(tmp_path):
    _, plugin = train(AlphaCSVLogger(tmp_path))

    with (tmp_path / "alpha_results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == PLASTIC]
    assert [float(row["value"]) for row in rows] == expected(plugin)
    assert [(row["training_exp"], row["epoch"]) for row in rows] == [("1", "0"), ("1", "1")]
    assert len((tmp_path / "training_results.csv").read_text().splitlines()) == 1 + 4


def test_tensorboard(tmp_path):
    logger = TensorboardLogger(tmp_path)
    _, plugin = train(logger)
    logger.writer.flush()

    events = EventAccumulator(str(tmp_path)).Reload()
    assert ACCURACY in events.Tags()["scalars"]
    for branch, name in enumerate((PLASTIC, STABLE)):
        values = [event.value for event in events.Scalars(name)]
        assert values == pytest.approx(expected(plugin, branch))


def test_values_are_plain_numbers_at_the_iteration():
    strategy, plugin = train()
    steps, values = strategy.evaluator.get_all_metrics()[PLASTIC]

    assert values == expected(plugin)
    assert all(type(value) is float for value in values)
    assert steps == sorted(set(steps))
    assert strategy.evaluator.get_last_metrics()[PLASTIC] == values[-1]


def test_more_branches_have_numbers():
    strategy, _ = train(blocks=("all", "all", "scaling"))
    names = {n.split("/")[0] for n in strategy.evaluator.get_last_metrics() if "Alpha" in n}

    assert names == {"Alpha_Plastic_Epoch", "Alpha_Branch1_Epoch", "Alpha_Stable_Epoch"}


def test_the_metrics_need_the_plugin():
    strategy = make(Naive, Network(), evaluator=EvaluationPlugin(alpha_metrics()))
    with pytest.raises(ConfigurationError, match="Naive has no AANetPlugin"):
        strategy.train(digits(per_class=4).train_stream[0])


def test_the_history_can_be_drawn(tmp_path):
    _, plugin = train()
    path: Path = tmp_path / "alpha.png"
    plot_alpha(plugin.bilevel.history, path)

    assert path.stat().st_size > 0
