"""A table of the paper end to end: worker processes, kill and resume."""

from __future__ import annotations

import csv
import dataclasses
import functools
import os
import signal
import time
from pathlib import Path

import pytest

from aanets_plugin import ConfigurationError
from aanets_plugin.experiments.many import do_all, list_runs
from aanets_plugin.experiments.paper.cells import Grid
from aanets_plugin.experiments.paper.grids import TABLES
from aanets_plugin.experiments.paper.scales import scale_of
from aanets_plugin.experiments.paper.write import write_table
from aanets_plugin.experiments.plan import do
from aanets_plugin.experiments.settings import Training
from aanets_plugin.experiments.workers import Workers, environments

pytestmark = pytest.mark.slow

TINY = dataclasses.replace(
    scale_of("digits"),
    training=Training(epochs=1, base_epochs=1, batch_size=32, lr=0.05, schedule="cosine"),
    exemplars=4,
    images_per_class=8,
    strict={"1": 3, "supplement": 2},
)
ROWS = ["1", "3", "8"]


def tiny_grid(output, **options):
    scale = dataclasses.replace(TINY, **options)
    return Grid(scale, TABLES["1"].chosen(ROWS), [2], [0], output=Path(output), device="cpu")


def files_of(grid):
    return [file.read_bytes() for file in write_table(grid, TABLES["1"])]


@functools.cache
def reference(folder):
    """The table of runs that were done in this process, one after another."""
    grid = tiny_grid(folder)
    for plan in grid.plans:
        do(plan, grid.output / plan.name, None)
    return grid


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return reference(tmp_path_factory.mktemp("reference"))


class KilledOnce(Workers):
    """Kills the process of the run `victim` when it has trained its first phase."""

    victim = "lucir-learned-N2-seed0"

    def start(self, name, call, log):
        started = super().start(name, call, log)
        if name == self.victim:
            self.victim = None
            while not (log.parent / "metrics.jsonl").exists():
                time.sleep(0.01)
            os.kill(started.process.pid, signal.SIGKILL)
        return started


def test_a_table_of_two_jobs_one_of_which_is_killed_has_the_same_bytes(done, tmp_path, capsys):
    grid = tiny_grid(tmp_path)
    grid.check()
    outcome = do_all(grid.plans, tmp_path, KilledOnce(environments(2, 1, 0)), 2)
    problem = outcome.failed.pop("lucir-learned-N2-seed0")
    assert problem == "its process ended with signal SIGKILL"
    assert outcome.failed == {}
    assert len(outcome.done) == 2
    assert b"not run" in files_of(grid)[0]

    outcome = do_all(grid.plans, tmp_path, Workers(environments(1, 1, 0)), 1)
    assert [job.name for job in outcome.done] == ["lucir-learned-N2-seed0"]
    assert "1 of 3 runs are left to do" in capsys.readouterr().out
    assert files_of(grid) == files_of(done)
    trained = list(tmp_path.glob("*/checkpoint/base.pt"))
    assert len(trained) == 1  # once, and shared


def test_the_table_has_every_cell_and_its_cost(done):
    markdown, text, latex = (content.decode() for content in files_of(done))
    assert "not run |" not in markdown
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["row"] for row in rows] == ROWS
    for row in rows:
        assert 0 < float(row["mean"]) <= 100
        assert (row["paper"], row["interval"]) == ("", "")
    assert int(rows[1]["memory_bytes"]) > int(rows[0]["memory_bytes"])
    assert r'"all" + "scaling" &' in latex
    assert r"\toprule" in latex


def test_a_folder_with_runs_of_other_settings_is_refused(done):
    with pytest.raises(ConfigurationError, match="holds a run with other settings"):
        tiny_grid(done.output, exemplars=5).check()


def test_the_list_of_runs_says_what_is_left(done, tmp_path):
    left = list_runs(tiny_grid(tmp_path).plans, tmp_path, 1, 1).splitlines()
    assert [line.split()[0] for line in left[:3]] == [
        "lucir-plain-N2-seed0",
        "lucir-learned-N2-seed0",
        "lucir-strict3-N2-seed0",
    ]
    assert left[-1].startswith("3 runs, about")
    assert "3 measured" in left[-1] or "2 measured" in left[-1]
    over = list_runs(done.plans, done.output, 1, 1)
    assert over.count("finished") == 3
