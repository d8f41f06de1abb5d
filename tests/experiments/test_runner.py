"""Runs of all methods on real Continuum scenarios: results, files, seeds, shared first phases."""

from __future__ import annotations

import csv
import dataclasses
import json

import pytest
import torch

from aanets_plugin import ConfigurationError
from aanets_plugin.baselines import CifarResNet, ICaRL, PODNet
from aanets_plugin.experiments import AANets, Memory
from tests.experiments.run_setup import (
    ARMS,
    EXEMPLARS,
    INCREMENTS,
    METHODS,
    TRAINING,
    digits,
    network,
    rows_of,
    saved,
    small_run,
)

RULES = {"head": "head", "nearest_mean": "nearest mean"}
REPORTED = "lucir"
"""The method whose runs have a report; those of the others are quicker without."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Gives (folder, result) of a method and an arm. Each is run only once."""
    root, runs = tmp_path_factory.mktemp("runs"), {}

    def get(name, arm="plain"):
        if (name, arm) not in runs:
            folder = root / f"{name}-{arm}"
            options = {"aanets": ARMS[arm], "command": f"run {name} {arm}"}
            options["report"] = name == REPORTED
            runs[name, arm] = folder, small_run(folder, METHODS[name], **options)
        return runs[name, arm]

    return get


def alphas(folder):
    """The rows of alpha.csv, converted to numbers."""
    with open(folder / "alpha.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        (int(r["phase"]), r["level"], r["loss"], float(r["alpha_0"]), float(r["alpha_1"]))
        for r in rows
    ]


# Every method, plain and with AANets


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("name", METHODS)
def test_a_run_writes_all_files_of_its_folder(name, arm, finished):
    folder, _ = finished(name, arm)
    expected = {"config.json", "network.json", "metrics.jsonl", "about.json", "status.json"}
    expected |= {"checkpoint", "time.json", "lock"}
    if arm == "aanets":
        expected.add("alpha.csv")
    if name == REPORTED:
        expected |= {"summary.md", "report.html", "cost.json", "accuracy.png", "accuracy.pdf"}
        if arm == "aanets":
            expected |= {"alpha.png", "alpha.pdf", "branches.json", "examples.npz", "grad_cam.png"}
        summary = (folder / "summary.md").read_text(encoding="utf-8")
        assert f"run {name} {arm}" in summary
        assert ("alpha.png" in summary) == (arm == "aanets")
    assert {path.name for path in folder.iterdir()} == expected
    files = {path.name for path in (folder / "checkpoint").iterdir()}
    assert files == {"phase.pt", "epoch.pt", "base.pt"}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["method"] == METHODS[name].settings()
    assert config["data"]["increments"] == INCREMENTS
    assert (config["aanets"] is None) == (arm == "plain")
    for picture in folder.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("name", METHODS)
def test_the_metrics_file_says_what_the_result_says(name, arm, finished):
    folder, result = finished(name, arm)
    rows = rows_of(folder)
    assert [row["phase"] for row in rows] == [0, 1, 2]
    assert [row["classes"] for row in rows] == result.classes == [6, 8, 10]
    for rule in RULES:
        measured = result.by(rule)
        if name == "joint" and rule == "nearest_mean":
            assert measured is None
            assert all(rule not in row for row in rows)
        else:
            assert [row[rule] for row in rows] == measured
            assert all(0 <= metrics["all"] <= 100 for metrics in measured)
            assert measured[0]["old"] is None
    assert result.head[0] != result.head[1]
    by = "upper bound" if name == "joint" else {"plain": "plain"}.get(arm, "AANets, learned α")
    assert result.arm == by


@pytest.mark.parametrize("name", METHODS)
def test_alpha_is_untouched_in_the_base_phase_and_moves_in_every_other(name, finished):
    folder, _ = finished(name, "aanets")
    rows = alphas(folder)
    assert [row[0] for row in rows] == [1] * 3 + [2] * 3
    assert [row[1] for row in rows[:3]] == ["layer1", "layer2", "layer3"]
    assert all(float(loss) > 0 for _, _, loss, _, _ in rows)
    assert all(first + second == pytest.approx(1) for *_, first, second in rows)
    before = dict.fromkeys([row[1] for row in rows[:3]], 0.5)
    for _, level, _, first, _ in rows:
        assert first != before[level]
        before[level] = first
    state = saved(folder)["net"]
    assert all(
        state[f"backbone.{level}.alpha"][0].item() == value for level, value in before.items()
    )


@pytest.mark.parametrize("name", METHODS)
def test_the_base_phase_is_that_of_the_plain_network(name, finished):
    """The network is converted after phase 0, and conversion does not change its outputs."""
    plain, aanets = (rows_of(finished(name, arm)[0]) for arm in ARMS)
    assert plain[0] == aanets[0]
    assert plain[1:] != aanets[1:]
    nets = [saved(finished(name, arm)[0], "base")["net"] for arm in ARMS]
    assert nets[0].keys() == nets[1].keys()
    assert all(torch.equal(nets[0][key], nets[1][key]) for key in nets[0])


def test_methods_with_the_same_head_share_a_base(finished):
    icarl, lucir, podnet = (
        saved(finished(n)[0], "base")["net"] for n in ("icarl", "lucir", "podnet")
    )
    assert all(torch.equal(icarl[key], lucir[key]) for key in icarl)
    assert podnet.keys() != icarl.keys()


# Seeds, bases, α that stays


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(finished, tmp_path):
    folder, _ = finished("lucir", "aanets")
    small_run(tmp_path / "again", aanets=AANets())
    small_run(tmp_path / "other", aanets=AANets(), seed=1)
    for file in ("metrics.jsonl", "alpha.csv"):
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes()
        assert (tmp_path / "other" / file).read_bytes() != (folder / file).read_bytes()


def test_a_run_from_a_base_is_the_run_that_trained_it_itself(finished, tmp_path):
    plain, _ = finished("lucir")
    own, _ = finished("lucir", "aanets")
    small_run(tmp_path / "run", aanets=AANets(), base=plain)
    for file in ("metrics.jsonl", "alpha.csv"):
        assert (tmp_path / "run" / file).read_bytes() == (own / file).read_bytes()
    # Phase 0 was not trained: the only epochs saved are later ones.
    assert not (tmp_path / "run" / "checkpoint" / "base.pt").exists()


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"training": dataclasses.replace(TRAINING, lr=0.1)}, "lr: 0.05 there, 0.1 now"),
        ({"training": dataclasses.replace(TRAINING, base_epochs=2)}, "epochs: 1 there, 2 now"),
        ({"method": PODNet()}, "head: cosine there, proxies now"),
        ({"backbone": lambda: CifarResNet(2, 10)}, "backbone: CifarResNet, "),
        ({"split": {"base_classes": 6, "phases": 2, "order": range(10)}}, "class_order"),
        ({"data": digits(per_class=19)}, "samples"),
        ({"data": digits(seed=1)}, "data"),
    ],
    ids=["seed", "lr", "epochs", "head", "backbone", "order", "fewer samples", "other samples"],
)
def test_a_base_with_other_settings_is_refused(options, quoted, finished, tmp_path):
    plain, _ = finished("lucir")
    with pytest.raises(ConfigurationError, match=quoted):
        small_run(tmp_path / "run", base=plain, **options)
    assert not (tmp_path / "run").exists()


def test_a_base_with_other_proxies_is_refused(finished, tmp_path):
    plain, _ = finished("podnet")
    with pytest.raises(ConfigurationError, match=r"proxies"):
        small_run(tmp_path / "run", PODNet(proxies=3, finetune_epochs=1), base=plain)


def test_a_base_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"base=.*nowhere.*does not exist"):
        small_run(tmp_path / "run", base=tmp_path / "nowhere")


def test_settings_that_phase_0_does_not_depend_on_may_differ_from_the_base(finished, tmp_path):
    plain, _ = finished("lucir")
    training = dataclasses.replace(TRAINING, epochs=2, base_epochs=1, base_lr=0.05, lr=0.01)
    options = {"training": training, "memory": Memory(per_class=EXEMPLARS)}
    result = small_run(tmp_path / "run", ICaRL(temperature=3.0), base=plain, **options)
    assert result.head[0] == rows_of(plain)[0]["head"]
    assert result.head[1] != rows_of(plain)[1]["head"]


def test_alpha_stays_where_its_learning_rate_is_0(finished, tmp_path):
    result = small_run(tmp_path / "run", aanets=AANets(alpha_lr=0), base=finished("lucir")[0])
    assert result.arm == "AANets, fixed α"
    assert [row[2:] for row in alphas(tmp_path / "run")] == [("", 0.5, 0.5)] * 6
    learned, _ = finished("lucir", "aanets")
    assert all(row[3] != 0.5 for row in alphas(learned))


def test_one_branch_that_learns_everything_is_the_plain_network(finished, tmp_path):
    """Runs with and without AANets differ in the architecture only."""
    plain, _ = finished("lucir")
    one = AANets(blocks=("all",), stem="plastic")
    small_run(tmp_path / "run", aanets=one, base=plain)
    assert rows_of(tmp_path / "run") == rows_of(plain)
    two, _ = finished("lucir", "aanets")
    assert rows_of(two) != rows_of(plain)


def test_a_given_network_is_copied_with_its_weights(finished, tmp_path):
    torch.manual_seed(5)
    given = network()
    before = {key: value.clone() for key, value in given.state_dict().items()}
    split = {"base_classes": 0, "phases": 1}
    small_run(tmp_path / "run", backbone=given, split=split)
    after = given.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    learned = saved(tmp_path / "run")["net"]["backbone.conv1.weight"]
    other = saved(finished("lucir")[0], "base")["net"]["backbone.conv1.weight"]
    # One epoch at a small learning rate: near to where it started, and that is far from others.
    assert (learned - given.conv1.weight).norm() < 0.5 * (other - given.conv1.weight).norm()
