"""Errors of a run: invalid settings before any training, and the state after a failure."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from continuum import ClassIncremental
from torch import nn

from aanets_plugin import (
    ConfigurationError,
    NonFiniteLossError,
    UnsupportedModelError,
    convert_to_aanet,
)
from aanets_plugin.baselines import LUCIR, Joint
from aanets_plugin.config import EXEMPLARS_PER_CLASS
from aanets_plugin.experiments import AANets, Memory, Training, run, scenarios
from tests.experiments.run_setup import (
    TRAINING,
    digits,
    first_of_each,
    network,
    rows_of,
    saved,
    small_run,
    watched_network,
)

ONE_PHASE = {"base_classes": 0, "phases": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with AANets."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    small_run(folder, aanets=AANets())
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    """Gives a copy of the folder of the run, with some files replaced."""

    def copy(**changed):
        folder = tmp_path / "copy"
        (folder / "checkpoint").mkdir(parents=True)
        for path in finished.rglob("*"):
            if path.is_file():
                target = folder / path.relative_to(finished)
                target.write_bytes(changed.get(path.stem, path.read_bytes()))
        return folder

    return copy


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(tmp_path, match, *, error=ConfigurationError, **options):
    """Check that the run raises this error before it trains or writes anything."""
    seen = []
    make = options.pop("backbone", network)
    with pytest.raises(error, match=match):
        small_run(tmp_path / "run", backbone=watched_network(seen, make), **options)
    assert not [why for why, _ in seen if why != "look"]
    assert not (tmp_path / "run").exists()


# Scenarios


@pytest.mark.parametrize(
    ("train", "test", "match"),
    [
        ({"phases": 2}, {"phases": 1}, "train scenario has 3 phases, the test scenario 2"),
        (
            {"phases": 2, "order": range(10)},
            {"phases": 2, "order": [*range(5), 6, 5, 7, 8, 9]},
            "same class order",
        ),
        ({"base_classes": 4, "phases": 2}, {"base_classes": 8, "phases": 1}, "3 phases"),
    ],
    ids=["phases", "order", "increments"],
)
def test_scenarios_that_do_not_match_are_refused(train, test, match, tmp_path):
    data = digits()
    train, _ = scenarios(data, **{"base_classes": 6, **train})
    _, test = scenarios(data, **{"base_classes": 6, **test})
    options = {"output": tmp_path / "run", "training": TRAINING, "progress": False}
    with pytest.raises(ConfigurationError, match=match):
        run(train, test, network, LUCIR(), **options)
    assert not (tmp_path / "run").exists()


def test_phases_of_other_sizes_are_refused(tmp_path):
    data = digits()
    train, test = (
        ClassIncremental(dataset, increment=sizes, transformations=data.test_transforms)
        for dataset, sizes in ((data.train, [6, 4]), (data.test, [5, 5]))
    )
    match = r"phase 0 trains the classes \[0, 1, 2, 3, 4, 5\] and tests \[0, 1, 2, 3, 4\]"
    with pytest.raises(ConfigurationError, match=match):
        run(train, test, network, LUCIR(), output=tmp_path / "run", progress=False)


# Settings


def test_more_exemplars_than_samples_are_refused(tmp_path):
    refused(tmp_path, "per_class=21 exemplars.*a class has only 20", memory=Memory(per_class=21))
    data = dataclasses.replace(digits(), train=first_of_each(digits().train, [20] * 9 + [4]))
    refused(tmp_path, "per_class=5 exemplars.*a class has only 4 ", data=data)


def test_a_memory_without_one_exemplar_for_each_class_is_refused(tmp_path):
    refused(tmp_path, "total=9: must be ≥ 10", memory=Memory(total=9))


def test_a_strict_memory_that_aanets_use_up_is_refused(tmp_path):
    options = {"aanets": AANets(), "memory": Memory(per_class=5, strict=True)}
    refused(tmp_path, "per_class=5: the extra parameters", **options)


@pytest.mark.parametrize("method", [LUCIR(), Joint()], ids=["lucir", "joint"])
@pytest.mark.parametrize(
    ("aanets", "match"),
    [
        (AANets(stages=["layer7"]), "no module 'layer7'"),
        (AANets(stages=["layer2", "layer1"]), "must be in forward order"),
    ],
    ids=["unknown", "order"],
)
def test_stages_that_the_network_does_not_have_are_refused(aanets, match, method, tmp_path):
    refused(tmp_path, match, method=method, aanets=aanets)


def test_more_balanced_samples_than_there_are_exemplars_are_refused(tmp_path):
    refused(tmp_path, "per_class=6 samples.*≤ 5", aanets=AANets(balanced_per_class=6))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"blocks": ("all", "nothing")}, "nothing"),
        ({"stem": "none"}, "stem='none'"),
        ({"alpha": (0.9, 0.9)}, "alpha="),
        ({"alpha_lr": -1.0}, "lr=-1.0"),
        ({"alpha_lr": float("nan")}, "lr=nan"),
        ({"balanced_per_class": 0}, "per_class=0"),
    ],
    ids=str,
)
def test_options_of_aanets_are_checked_when_they_are_given(options, match):
    with pytest.raises(ConfigurationError, match=match):
        AANets(**options)


def test_the_first_epoch_has_the_learning_rate_asked_for():
    for epochs in (1, 2, 3, 160):
        assert Training().factor(0, epochs, "step") == 1
        assert Training().factor(0, epochs, "cosine") == 1
    assert [Training().factor(epoch, 4, "step") for epoch in range(4)] == [1, 1, 0.1, 0.01]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"base_epochs": 0}, "base_epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"lr": -0.1}, "lr=-0.1"),
        ({"base_lr": 0.0}, "base_lr=0.0"),
        ({"schedule": "linear"}, "schedule='linear'"),
    ],
    ids=str,
)
def test_training_that_cannot_be_is_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        Training(**options)


def test_a_memory_is_per_class_or_in_total():
    with pytest.raises(ConfigurationError, match="per_class=1, total=1: must not both"):
        Memory(per_class=1, total=1)
    with pytest.raises(ConfigurationError, match="total=0: must be an integer ≥ 1, or None"):
        Memory(total=0)
    assert Memory(total=20).exemplars_per_class(6) == 3


def test_a_memory_has_the_papers_exemplars_by_default():
    assert Memory() == Memory(per_class=EXEMPLARS_PER_CLASS)
    assert Memory(strict=True).per_class == EXEMPLARS_PER_CLASS
    assert Memory(total=100).per_class is None


def test_a_network_that_gives_no_features_is_refused(tmp_path):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return x, self.conv(x)

    refused(tmp_path, "Pair returns a tuple", error=UnsupportedModelError, backbone=Pair)


def test_a_network_without_stages_is_refused_for_aanets(tmp_path):
    def flat():
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 5))

    match = r"Sequential has no residual stage.*stages="
    refused(tmp_path, match, error=UnsupportedModelError, backbone=flat, aanets=AANets())


# Folders


def test_a_folder_in_use_is_refused_and_left_alone(finished):
    before = contents(finished)
    with pytest.raises(ConfigurationError, match=r"finished holds a run already.*resume"):
        small_run(finished, aanets=AANets())
    assert contents(finished) == before


def test_a_folder_with_checkpoints_and_no_config_is_refused(copied):
    folder = copied()
    (folder / "config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"copy holds"):
        small_run(folder, aanets=AANets(), seed=1)


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"aanets": None}, "aanets: .* there, None now"),
        ({"method": LUCIR(k=3)}, "method: .*'k': 2.*'k': 3"),
        ({"training": dataclasses.replace(TRAINING, epochs=2)}, "training: .*'epochs': 2"),
        ({"memory": Memory(total=50)}, "memory: .*'total': 50"),
        ({"data": digits(per_class=19)}, "data: "),
        ({"data": digits(seed=1)}, "data: "),
    ],
    ids=["seed", "arm", "method", "training", "memory", "fewer samples", "other samples"],
)
def test_a_run_resumes_with_its_own_settings_only(options, quoted, finished):
    before = contents(finished)
    with pytest.raises(ConfigurationError, match=rf"other settings.*{quoted}"):
        small_run(finished, resume=True, **{"aanets": AANets(), **options})
    assert contents(finished) == before


def test_a_finished_run_that_is_resumed_gives_its_result_again(finished):
    before = contents(finished)
    result = small_run(finished, aanets=AANets(), resume=True)
    assert result.head == [row["head"] for row in rows_of(finished)]
    assert contents(finished) == before


def test_resuming_where_nothing_was_starts_a_run(tmp_path):
    result = small_run(tmp_path / "run", resume=True, split=ONE_PHASE)
    assert result.classes == [10]


# Checkpoints


@pytest.mark.parametrize("left", [0, 100, 5000])
def test_a_truncated_checkpoint_is_refused_by_name(left, copied, finished):
    whole = (finished / "checkpoint" / "phase.pt").read_bytes()
    folder = copied(phase=whole[:left])
    before = contents(folder)
    with pytest.raises(ConfigurationError, match=r"phase\.pt cannot be read.*truncated"):
        small_run(folder, aanets=AANets(), resume=True)
    assert contents(folder) == before


def test_a_truncated_epoch_is_refused_and_the_state_before_it_goes_on(copied, finished):
    folder = copied(epoch=(finished / "checkpoint" / "epoch.pt").read_bytes()[:-1000])
    (folder / "checkpoint" / "phase.pt").unlink()
    with pytest.raises(ConfigurationError, match=r"epoch\.pt cannot be read.*delete it"):
        small_run(folder, aanets=AANets(), resume=True)
    (folder / "checkpoint" / "epoch.pt").unlink()
    small_run(folder, aanets=AANets(), resume=True)
    for name in ("metrics.jsonl", "alpha.csv"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


def test_a_foreign_checkpoint_is_refused_and_none_of_its_code_runs(copied):
    class Trap:
        def __reduce__(self):
            return (open, (str(folder / "sprung"), "w"))

    folder = copied()
    torch.save({"rows": []}, folder / "checkpoint" / "phase.pt")
    with pytest.raises(ConfigurationError, match=r"not a checkpoint of this version.*None"):
        small_run(folder, aanets=AANets(), resume=True)
    torch.save(Trap(), folder / "checkpoint" / "phase.pt")
    with pytest.raises(ConfigurationError, match=r"cannot be read"):
        small_run(folder, aanets=AANets(), resume=True)
    assert not (folder / "sprung").exists()


def test_a_truncated_base_is_refused(copied, finished, tmp_path):
    folder = copied(base=(finished / "checkpoint" / "base.pt").read_bytes()[:-100])
    refused(tmp_path, r"base\.pt cannot be read", base=folder)


# A loss that is not finite


def test_a_loss_that_is_not_finite_leaves_the_state_before_it(tmp_path, finished):
    training = dataclasses.replace(TRAINING, base_lr=0.05, lr=1e20)
    with pytest.raises(NonFiniteLossError, match=r"phase 1, epoch 0.*1e\+20"):
        small_run(tmp_path / "run", aanets=AANets(), training=training)
    assert rows_of(tmp_path / "run") == rows_of(finished)[:1]
    state, base = saved(tmp_path / "run"), saved(finished, "base")
    assert len(state["rows"]) == 1
    assert all(torch.isfinite(value).all() for value in state["net"].values())
    assert torch.equal(state["net"]["backbone.conv1.weight"], base["net"]["backbone.conv1.weight"])
    assert saved(tmp_path / "run", "epoch")["phase"] == 0


def test_a_converted_backbone_is_no_plain_arm(tmp_path):
    refused(
        tmp_path,
        "The backbone is converted",
        backbone=lambda *options: convert_to_aanet(network(*options)),
        aanets=None,
    )
