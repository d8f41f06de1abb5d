"""A run that is interrupted after an experience and resumed in a new process ends the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("avalanche")

from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.storage_policy import HerdingSelectionStrategy, ParametricBuffer
from avalanche.training.supervised import Replay

from aanets_plugin.adapters.avalanche import AANetPlugin, alpha_metrics
from tests.adapters.avalanche_setup import STRATEGIES, Network, accuracy, digits, make, phi

pytestmark = pytest.mark.avalanche

ROOT = Path(__file__).parents[2]


def replay_with_momentum(**options: Any) -> Any:
    model = Network(grows=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    evaluator = EvaluationPlugin(alpha_metrics())
    return make(Replay, model, optimizer=optimizer, evaluator=evaluator, mem_size=12, **options)


def hooks_on_the_model(plugins: list[Any], **options: Any) -> Any:
    """Herding takes its features by a forward hook, set before the model is converted."""
    model = Network()
    herding = HerdingSelectionStrategy(model, "feature_extractor")
    policy = ParametricBuffer(12, groupby="class", selection_strategy=herding)
    plugins = [AANetPlugin(storage_policy=policy, schedule=lambda epoch: 0.9**epoch, momentum=0.5)]
    return make(Replay, model, mem_size=12, plugins=plugins, **options)


CASES: dict[str, Callable[..., Any]] = {
    "momentum": replay_with_momentum,
    "hooks": hooks_on_the_model,
    **{name: STRATEGIES[name] for name in ("Naive", "LwF", "DER", "GDumb", "ICaRL")},
}


def run(name: str, seed: int, checkpoint: Path | None, stop: int = 3) -> dict[str, Any]:
    """Train up to experience `stop`, from the checkpoint if there is one; what came of it."""
    RNGManager.set_random_seeds(seed)
    strategy, benchmark, start = CASES[name](plugins=[AANetPlugin()]), digits(per_class=6), 0
    if checkpoint is not None:
        strategy, start = maybe_load_checkpoint(strategy, checkpoint)
    accuracies = []
    for experience in benchmark.train_stream[start:stop]:
        strategy.train(experience)
        accuracies.append(accuracy(strategy, benchmark.test_stream))
        if checkpoint is not None:
            save_checkpoint(strategy, checkpoint)
    history = AANetPlugin.of(strategy).bilevel.history
    return {
        "begun at": start,
        "accuracies": accuracies,
        "alpha": [[r.phase, r.epoch, r.level, *r.weights, r.loss] for r in history],
        "phi": phi(strategy.model).double().sum().item(),
    }


def main(folder: Path) -> None:
    """The new process: resume every case from its checkpoint, with another seed at first."""
    torch.set_num_threads(1)
    results = {name: run(name, seed=99, checkpoint=folder / f"{name}.pkl") for name in CASES}
    (folder / "resumed.json").write_text(json.dumps(results))


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every case, interrupted after its second experience and resumed, in one new process."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in CASES:
        run(name, seed=1, checkpoint=folder / f"{name}.pkl", stop=2)
    module = "tests.adapters.test_avalanche_checkpoint"
    command = [sys.executable, "-W", "ignore", "-m", module, folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "resumed.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_ends_as_if_it_had_not_been_interrupted(name, resumed):
    whole = run(name, seed=1, checkpoint=None)

    assert resumed[name]["begun at"] == 2
    assert resumed[name]["accuracies"] == whole["accuracies"][2:]
    assert {phase for phase, *_ in resumed[name]["alpha"]} == {1, 2}
    assert resumed[name]["alpha"] == whole["alpha"]
    assert resumed[name]["phi"] == whole["phi"]


@pytest.mark.slow
def test_another_seed_ends_differently(resumed):
    other = run("Naive", seed=2, checkpoint=None)

    assert resumed["Naive"]["alpha"] != other["alpha"]
    assert resumed["Naive"]["phi"] != other["phi"]


def test_a_checkpoint_after_the_base_phase_is_enough(tmp_path):
    path = tmp_path / "run.pkl"
    run("Naive", seed=1, checkpoint=path, stop=1)
    rest = run("Naive", seed=99, checkpoint=path)

    assert rest["begun at"] == 1
    assert rest["alpha"] == run("Naive", seed=1, checkpoint=None)["alpha"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
