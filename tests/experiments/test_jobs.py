"""`aanets run --jobs N`: the runs of a comparison side by side, each in a process of its own."""

from __future__ import annotations

import re

import pytest
import torch

from aanets_plugin.baselines import LUCIR
from aanets_plugin.experiments import cli, command
from aanets_plugin.experiments.cli import main

pytestmark = pytest.mark.slow

TINY = ["--phases", "1", "--epochs", "1", "--images-per-class", "8", "--memory-per-class", "2"]
TINY += ["--backbone", "resnet8", "--device", "cpu", "--seeds", "0", "1"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_runs_side_by_side_have_the_results_of_runs_one_after_another(tmp_path, capsys):
    alone = main(LUCIR(), [*TINY, "--threads", "1", "--output", "alone"])
    assert torch.get_num_threads() == 1
    jobs = main(LUCIR(), [*TINY, "--jobs", "2", "--output", "jobs"])
    assert jobs == alone
    assert jobs[0].head != jobs[2].head  # another seed has other results
    names = ["plain-0", "learned-0", "plain-1", "learned-1"]
    told = re.findall(r"run \d of 4, ([\w-]+): average", capsys.readouterr().out)
    assert sorted(told) == sorted(names)
    for name in names:
        one, other = (tmp_path / folder / name / "metrics.jsonl" for folder in ("alone", "jobs"))
        assert one.read_bytes() == other.read_bytes()
        # The arms of a seed share their first phase.
        assert (tmp_path / "jobs" / name / "checkpoint" / "base.pt").exists() == ("plain" in name)
    for name in ("summary.md", "costs.md", "costs.csv", "accuracy.png", "alpha.png", "report.html"):
        assert (tmp_path / "jobs" / name).stat().st_size > 0


def test_the_program_hands_its_options_to_other_processes(tmp_path, capsys):
    command.main(["run", "lucir", *TINY, "--no-aanet", "--jobs", "1", "--output", "jobs"])
    assert "2 of 2 runs are left to do" in capsys.readouterr().out
    for name in ("plain-0", "plain-1"):
        rows = (tmp_path / "jobs" / name / "metrics.jsonl").read_text(encoding="utf-8")
        assert len(rows.splitlines()) == 2


def test_a_run_that_fails_is_told_and_the_others_are_finished(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "_do_one", fails_with_seed_1)
    options = [*TINY, "--no-aanet", "--jobs", "1", "--output", "jobs"]
    with pytest.raises(SystemExit) as stopped:
        main(LUCIR(), options)
    assert stopped.value.code == 1
    told = capsys.readouterr().err
    assert "plain-1 failed: OSError: no such disk" in told
    assert "Add --resume to the same command" in told
    assert (tmp_path / "jobs" / "plain-0" / "metrics.jsonl").exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert [result.seed for result in main(LUCIR(), [*options, "--resume"])] == [0, 1]
    assert "1 of 2 runs are left to do" in capsys.readouterr().out


def fails_with_seed_1(method, args, command, place, base):
    if place.seed == 1:
        raise OSError("no such disk")
    cli.comparison_from(method, args, command).do(place, base)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", "0"], "--jobs 0: must be ≥ 1."),
        (["--threads", "-1"], "--threads -1: must be ≥ 1."),
        (["--jobs", "2", "--device", "cuda:1"], "--device cuda:1: does not go with --jobs"),
        (["--slurm", "timeout_min=3"], "--slurm timeout_min=3: needs --launcher slurm"),
    ],
)
def test_wrong_options_end_with_a_message_before_any_training(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(LUCIR(), [*TINY, "--device", "cpu", *options])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
