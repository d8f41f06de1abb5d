"""A run that is killed at any moment and resumed is bit-identical to one that was not."""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
import time

import pytest
import torch

from aanets_plugin.experiments import AANets, Training
from tests.experiments.run_setup import METHODS, rows_of, saved, small_run

pytestmark = pytest.mark.slow

TRAINING = Training(epochs=2, batch_size=32, lr=0.05)
METHODS = {
    "lucir": METHODS["lucir"],
    "podnet": dataclasses.replace(METHODS["podnet"], finetune_epochs=2),
    "mnemonics": METHODS["mnemonics"],
}
FILES = ("metrics.jsonl", "alpha.csv")


def the_run(folder, name):
    torch.set_num_threads(1)
    small_run(folder, METHODS[name], aanets=AANets(), training=TRAINING, resume=True)


@pytest.fixture(scope="module")
def start():
    """Starts the run in a separate process, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "tests.experiments.run_setup",
            "pytest",
            "sklearn.datasets",
            "matplotlib.backends.backend_agg",
        ]
    )

    def started(folder, name):
        process = context.Process(target=the_run, args=(folder, name))
        process.start()
        return process

    return started


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """Gives the folder of a method's run that was not killed."""
    root, processes = tmp_path_factory.mktemp("whole"), {}

    def get(name):
        if name not in processes:
            processes[name] = start(root / name, name)
            processes[name].join()
        assert processes[name].exitcode == 0
        return root / name

    return get


def inode(path):
    """A number that changes when the file is replaced; 0 if there is no file."""
    try:
        return path.stat().st_ino, path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def killed(process, moment, patience=60):
    """Kill the process at this moment. Returns whether it was still running."""
    deadline = time.monotonic() + patience
    while process.is_alive() and not moment():
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.0005)
    process.kill()
    process.join()
    return process.exitcode == -9


def epoch_saved(folder, *where):
    """The moment when the checkpoint of this phase and epoch is written."""
    path, last = folder / "checkpoint" / "epoch.pt", [0]

    def moment():
        if inode(path) == last[0]:
            return False
        last[0] = inode(path)
        state = saved(folder, "epoch")
        return (state["phase"], state["epoch"]) == where

    return moment


def replaced(path):
    """The moment when a file is created or replaced."""
    before = inode(path)
    return lambda: inode(path) != before


def after(seconds):
    """The moment after this many seconds."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def state_of(folder):
    """The progress of a run: finished phases, and the last epoch saved."""
    done = len(saved(folder)["rows"]) if (folder / "checkpoint" / "phase.pt").exists() else 0
    if not (folder / "checkpoint" / "epoch.pt").exists():
        return done, None, None
    epoch = saved(folder, "epoch")
    return done, epoch["phase"], epoch["epoch"]


def assert_same_end(folder, expected):
    for name in FILES:
        assert (folder / name).read_bytes() == (expected / name).read_bytes()
    assert len(rows_of(folder)) == 3
    ours, theirs = saved(folder), saved(expected)
    assert all(torch.equal(ours["net"][key], theirs["net"][key]) for key in theirs["net"])
    for key in ("x", "y", "t"):
        assert torch.equal(ours["exemplars"][key], theirs["exemplars"][key])
    written = {path.relative_to(folder) for path in folder.rglob("*") if path.suffix != ".tmp"}
    assert written == {path.relative_to(expected) for path in expected.rglob("*")}


def kill_at(moments, folder, name, start):
    """Kill the run at each moment, then let it finish. Returns its progress at each kill."""
    states = []
    for what, moment in moments.items():
        assert killed(start(folder, name), moment()), f"over before: {what}"
        assert not (folder / "about.json").exists()
        states.append(state_of(folder))
    # A later epoch may have been saved before the signal came; none was ever lost.
    assert states == sorted(states, key=lambda state: [-1 if s is None else s for s in state])
    last = start(folder, name)
    last.join()
    assert last.exitcode == 0
    return states


def test_a_run_killed_at_every_kind_of_moment_ends_with_the_same_bytes(start, whole, tmp_path):
    expected, folder = whole("lucir"), tmp_path / "run"
    checkpoint = folder / "checkpoint"
    moments = {
        "config written": lambda: replaced(folder / "config.json"),
        "first epoch": lambda: epoch_saved(folder, 0, 0),
        "base epochs over": lambda: epoch_saved(folder, 0, 1),
        "base phase over": lambda: replaced(checkpoint / "phase.pt"),
        "epoch 0 of phase 1": lambda: epoch_saved(folder, 1, 0),
        "epoch 1 of phase 1": lambda: epoch_saved(folder, 1, 1),
        "metrics without their checkpoint": lambda: replaced(folder / "metrics.jsonl"),
        "phase 1 over": lambda: replaced(checkpoint / "phase.pt"),
        "epoch 1 of phase 2": lambda: epoch_saved(folder, 2, 1),
        "all phases over, no report": lambda: replaced(checkpoint / "phase.pt"),
    }
    states = kill_at(moments, folder, "lucir", start)
    assert [done for done, _, _ in states[:3]] == [0, 0, 0]
    assert states[-1][0] == 3
    assert len(set(states)) >= 6
    assert_same_end(folder, expected)


@pytest.mark.parametrize("name", ["podnet", "mnemonics"])
def test_a_run_killed_while_it_refines_or_tunes_ends_with_the_same_bytes(
    name, start, whole, tmp_path
):
    expected, folder = whole(name), tmp_path / "run"
    moments = {
        "base refined": lambda: replaced(folder / "metrics.jsonl"),
        "before refining and tuning": lambda: epoch_saved(folder, 1, 1),
        "after tuning": lambda: replaced(folder / "metrics.jsonl"),
        "in the last phase": lambda: epoch_saved(folder, 2, 1),
    }
    kill_at(moments, folder, name, start)
    assert_same_end(folder, expected)


def test_a_run_killed_while_a_checkpoint_is_written_ends_with_the_same_bytes(
    start, whole, tmp_path
):
    expected, folder = whole("lucir"), tmp_path / "run"
    kills = 0
    for name in ("epoch.pt.tmp", "base.pt.tmp", "phase.pt.tmp", "epoch.pt.tmp", "phase.pt.tmp"):
        file = folder / "checkpoint" / name
        file.unlink(missing_ok=True)
        kills += killed(start(folder, "lucir"), file.exists)
        left = list((folder / "checkpoint").glob("*.pt"))
        assert all(saved(folder, path.stem) for path in left)  # whole, all of them
    assert kills == 5
    last = start(folder, "lucir")
    last.join()
    assert_same_end(folder, expected)


def test_a_run_killed_after_any_time_ends_with_the_same_bytes(start, whole, tmp_path):
    expected, folder = whole("lucir"), tmp_path / "run"
    began = time.monotonic()
    draw, kills = random.Random(0), 0
    wait = 0.5
    for _ in range(30):
        kills += killed(start(folder, "lucir"), after(wait * draw.uniform(0.2, 1)))
        if (folder / "about.json").exists():
            break
        wait *= 1.2  # at last it gets to the end, however slow the machine is
    else:
        last = start(folder, "lucir")
        last.join()
    assert kills >= 2, f"{time.monotonic() - began:.1f} seconds"
    assert_same_end(folder, expected)


def test_another_seed_would_have_been_seen(whole, tmp_path):
    small_run(tmp_path / "run", METHODS["lucir"], aanets=AANets(), training=TRAINING, seed=1)
    with pytest.raises(AssertionError):
        assert_same_end(tmp_path / "run", whole("lucir"))
