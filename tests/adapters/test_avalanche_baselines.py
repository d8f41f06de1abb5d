"""LUCIR, PODNet and Mnemonics as Avalanche strategies, plain and with AANetPlugin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("avalanche")

from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics, loss_metrics
from avalanche.models import MTSlimResNet18, SlimResNet18
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin, LRSchedulerPlugin
from torch import nn

from aanets_plugin import AANetError, baselines, herd
from aanets_plugin.adapters.avalanche import (
    LUCIR,
    AANetPlugin,
    Mnemonics,
    PODNet,
    UnsupportedStrategyError,
    alpha_metrics,
)
from aanets_plugin.adapters.avalanche.herding import HerdedBuffer
from aanets_plugin.baselines import CosineLinear, IncrementalNet
from tests.adapters.avalanche_setup import (
    Backbone,
    Network,
    accuracy,
    assert_alpha_moved,
    digits,
    phi,
    train,
)

pytestmark = pytest.mark.avalanche

ROOT = Path(__file__).parents[2]
STRATEGIES: dict[Any, Any] = {
    LUCIR: baselines.LUCIR(),
    PODNet: baselines.PODNet(proxies=2, finetune_epochs=1),
    Mnemonics: baselines.Mnemonics(refine_steps=2, refine_lr=0.01, finetune_epochs=1),
}


def build(kind: Any = LUCIR, model: nn.Module | None = None, **options: Any) -> Any:
    """A small one; four exemplars of each class."""
    model = model or Network()
    settings: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters(), 0.05, 0.9)}
    settings |= {"method": STRATEGIES[kind], "train_mb_size": 10, "eval_mb_size": 60}
    if not {"mem_size", "mem_size_per_class"} & set(options):
        settings["mem_size_per_class"] = 4
    return kind(**{**settings, "train_epochs": 2, "model": model, "evaluator": None, **options})


def weights(head: Any) -> torch.Tensor:
    return head.weight.detach().clone()


class Watch:
    """Notes the head when an experience begins and when its last epoch has ended."""

    def __init__(self) -> None:
        self.begun: list[torch.Tensor] = []
        self.ended: list[torch.Tensor] = []

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        self.begun.append(weights(strategy.net.fc))
        self.ended.append(self.begun[-1])

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.ended[-1] = weights(strategy.net.fc)


@pytest.mark.parametrize("aanets", [False, True], ids=["plain", "aanets"])
@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
def test_three_experiences(kind, aanets):
    watch, plugin, benchmark = Watch(), AANetPlugin(), digits()
    strategy = build(kind, plugins=[plugin, watch] if aanets else [watch])
    seen = 0
    for experience in benchmark.train_stream:
        strategy.train(experience)
        begun, ended = watch.begun[-1], watch.ended[-1]
        assert len(begun) == len(ended) == seen + 2
        assert torch.equal(begun[:seen], ended[:seen]), "old weights are fixed"
        assert (begun[seen:] != ended[seen:]).any(), "new ones learn"
        moved = not torch.equal(ended[:seen], weights(strategy.net.fc)[:seen])
        assert moved == (seen > 0 and kind is not LUCIR), "until the head is fine-tuned"
        seen += 2
        groups = strategy.storage_policy.groups
        assert {label: len(group) for label, group in groups.items()} == dict.fromkeys(
            range(seen), 4
        )
    assert strategy.teacher is None
    held = [id(p) for group in strategy.optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(map(id, strategy.model.parameters()))
    assert 0 < accuracy(strategy, benchmark.test_stream) <= 1
    if aanets:
        assert_alpha_moved(plugin, {1, 2})
        assert (phi(strategy.model) != 1).any()
        assert plugin.balanced.kept == [], "the exemplars of the strategy serve α too"


def test_alpha_learns_on_the_exemplars(caplog):
    caplog.set_level("INFO", "aanets_plugin")
    train(build(plugins=[AANetPlugin()], train_epochs=1), 2)

    assert "4 samples of each of 4 classes: the old ones from the data that LUCIR" in caplog.text


def images(data: Any) -> torch.Tensor:
    return torch.stack([x for x, *_ in data])


def test_exemplars_are_herded_and_those_of_mnemonics_learned():
    for kind in (LUCIR, Mnemonics):
        strategy = build(kind, train_epochs=1)
        experience = digits().train_stream[0]
        strategy.train(experience)
        new = images(experience.dataset)[torch.tensor(experience.dataset.targets[:]) == 1]
        with torch.no_grad():
            features = strategy.net.eval().features(new)
        herded, kept = new[herd(features, 4)], images(strategy.storage_policy.groups[1])

        assert torch.equal(herded, kept) == (kind is LUCIR)
        assert 0 <= kept.min() <= kept.max() <= 1
        assert (herded - kept).abs().max() < 1


def test_both_interfaces_of_a_storage_policy_fill_the_herded_buffer():
    strategy = build(train_epochs=1)
    strategy.train(experience := digits().train_stream[0])
    new, old = HerdedBuffer(4, None), HerdedBuffer(4, None)
    new.post_adapt(strategy, experience)
    strategy.experience = experience
    old.update(strategy)

    assert new.groups.keys() == old.groups.keys() == {0, 1}
    for buffer in (new, old):
        assert torch.equal(images(buffer.buffer), images(strategy.storage_policy.buffer))


def test_transforms_of_learned_exemplars():
    strategy = build(Mnemonics, exemplar_transform=lambda x: x + 100, train_epochs=1)
    strategy.train(digits().train_stream[0])

    exemplars = strategy.storage_policy.buffer
    assert images(exemplars.train()).min() >= 100
    assert images(exemplars.eval()).max() <= 1


def test_a_total_memory_is_shared_by_the_classes():
    strategy, stream = build(mem_size=13), digits().train_stream
    strategy.train(stream[0])
    before = [images(strategy.storage_policy.groups[label]) for label in (0, 1)]
    strategy.train(stream[1])
    after = [images(strategy.storage_policy.groups[label]) for label in (0, 1)]

    assert [len(part) for part in before + after] == [6, 6, 3, 3]
    assert all(torch.equal(a, b[:3]) for a, b in zip(after, before, strict=True)), "the best stay"


def test_class_ids_in_any_order():
    """The same classes in the same order train the same network, whatever their ids are."""
    outputs, order = [], [0, 5, 1, 3, 2, 4]
    for options in ({}, {"class_ids_from_zero_from_first_exp": True}):
        torch.manual_seed(0)
        benchmark = digits(fixed_class_order=order, **options)
        strategy = build(plugins=[AANetPlugin()])
        for experience in benchmark.train_stream:
            strategy.train(experience)
        outputs.append(strategy.model.eval()(images(digits().test_stream[0].dataset)))
        assert strategy.net.classes == (list(range(6)) if options else order)

    # The balanced samples come by id, so sums over them may round otherwise.
    assert torch.allclose(outputs[0][:, order], outputs[1], atol=1e-5)
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-2)


def test_the_nearest_mean_predicts():
    strategy = train(build(train_epochs=4, predict_by="nearest_mean"))
    stream = digits().test_stream
    by_mean, strategy.predict_by = accuracy(strategy, stream), "head"

    assert by_mean > 0.5
    assert by_mean != accuracy(strategy, stream)


def test_evaluation_while_training_with_metrics_and_a_schedule():
    model = Network(grows=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = LRSchedulerPlugin(torch.optim.lr_scheduler.MultiStepLR(optimizer, [1]))
    evaluator = EvaluationPlugin(
        accuracy_metrics(epoch=True, experience=True, stream=True),
        loss_metrics(epoch=True, stream=True),
        forgetting_metrics(experience=True),
        alpha_metrics(),
    )
    rates = []

    class Rates:
        def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
            rates.append(strategy.optimizer.param_groups[0]["lr"])

    strategy = build(
        model=model,
        optimizer=optimizer,
        plugins=[AANetPlugin(), schedule, Rates()],
        evaluator=evaluator,
        eval_every=1,
    )
    benchmark = digits()
    strategy.eval(benchmark.test_stream)  # nothing is known yet
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[benchmark.test_stream])
        found = strategy.eval(benchmark.test_stream)

    assert rates == pytest.approx([0.05, 0.005] * 3)
    assert 0 < found["Top1_Acc_Stream/eval_phase/test_stream/Task000"] <= 1
    for name in ("Alpha_Plastic_Epoch", "Alpha_Stable_Epoch", "ExperienceForgetting", "Loss_Epoch"):
        assert any(key.startswith(name) for key in found), name


def test_parameter_groups_of_the_user_stay():
    model = Network()
    groups = [
        {"params": list(model.feature_extractor.layer1.parameters()), "lr": 0.01},
        {"params": list(model.feature_extractor.layer2.parameters()), "lr": 0.02},
        {"params": list(model.classifier.parameters()), "lr": 0.03},
        {"params": [*model.feature_extractor.conv1.parameters()], "lr": 0.04},
        {"params": [*model.feature_extractor.bn1.parameters()], "lr": 0.05},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    strategy = train(build(model=model, optimizer=optimizer, plugins=[AANetPlugin()]))

    assert strategy.optimizer is optimizer
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.02, 0.03, 0.04, 0.05]
    head = set(map(id, strategy.net.fc.parameters()))
    assert set(map(id, optimizer.param_groups[2]["params"])) == head


@pytest.mark.parametrize(
    "model",
    [
        lambda: SlimResNet18(6, nf=2),
        lambda: IncrementalNet(SlimResNet18(6, nf=2), CosineLinear(6, 2)),
    ],
    ids=["SlimResNet18", "IncrementalNet"],
)
def test_other_networks(model):
    benchmark = digits(per_class=4, size=32, channels=3)
    strategy = build(model=model(), train_epochs=1, plugins=[AANetPlugin()])
    for experience in benchmark.train_stream:
        strategy.train(experience)

    assert strategy.model(torch.zeros(2, 3, 32, 32)).shape == (2, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mem_size": 0}, "mem_size=0: must be an integer ≥ 1"),
        ({"mem_size": 60, "mem_size_per_class": 2}, "mem_size_per_class=2 and mem_size=60: give"),
        ({"method": baselines.PODNet()}, r"method=PODNet\(.*must be an .*baselines.LUCIR"),
        ({"predict_by": "mean"}, "predict_by='mean': must be 'head' or 'nearest_mean'"),
        ({"model": MTSlimResNet18(2, nf=2)}, "MTSlimResNet18 wants task labels"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(AANetError, match=message):
        build(**options)


def test_streams_and_heads_that_cannot_be_used():
    first, second = digits().train_stream[:2]
    strategy = build(mem_size=3)
    strategy.train(first)
    with pytest.raises(UnsupportedStrategyError, match=r"experience 0 has the classes \[0, 1\]"):
        strategy.train(first)
    with pytest.raises(AANetError, match="mem_size=3 has no exemplar for each of 4 classes"):
        strategy.train(second)
    assert strategy.net.classes == [0, 1], "told before training"
    with pytest.raises(UnsupportedStrategyError, match="part of an online stream"):
        build().train(split_online_stream(digits().train_stream, experience_size=10))
    with pytest.raises(AANetError, match=r"has the head CosineLinear\(.*out_features=5"):
        build(model=IncrementalNet(Backbone(), CosineLinear(8, 5))).train(first)


# -- checkpoints ---------------------------------------------------------------------------------


def run(seed: int, checkpoint: Path | None, stop: int = 3) -> dict[str, Any]:
    """Train LUCIR with AANets up to experience `stop`, from the checkpoint if there is one."""
    RNGManager.set_random_seeds(seed)
    strategy, benchmark, start = build(plugins=[AANetPlugin()]), digits(per_class=6), 0
    if checkpoint is not None:
        strategy, start = maybe_load_checkpoint(strategy, checkpoint)
    for experience in benchmark.train_stream[start:stop]:
        strategy.train(experience)
        if checkpoint is not None:
            save_checkpoint(strategy, checkpoint)
    history = AANetPlugin.of(strategy).bilevel.history
    return {
        "begun at": start,
        "alpha": [[r.phase, r.epoch, r.level, *r.weights, r.loss] for r in history],
        "head": weights(strategy.net.fc).tolist(),
        "exemplars": images(strategy.storage_policy.buffer).flatten().tolist(),
    }


@pytest.mark.slow
def test_a_run_resumed_in_a_new_process_ends_as_if_it_had_not_been_interrupted(tmp_path):
    path, command = tmp_path / "run.pkl", [sys.executable, "-W", "ignore", "-m"]
    run(1, path, stop=2)
    done = subprocess.run(
        [*command, "tests.adapters.test_avalanche_baselines", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    resumed, whole = json.loads(path.with_suffix(".json").read_text()), run(1, None)

    assert resumed == {**whole, "begun at": 2}
    assert run(2, None)["head"] != whole["head"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    target.with_suffix(".json").write_text(json.dumps(run(99, target)))
