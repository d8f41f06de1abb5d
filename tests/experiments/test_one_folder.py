"""Several processes and several seeds in one output folder."""

from __future__ import annotations

import csv
import fcntl
import subprocess
import sys

import pytest

from aanets_plugin import ConfigurationError
from aanets_plugin.baselines import LUCIR
from aanets_plugin.experiments import Memory, arms_of, scenarios
from aanets_plugin.experiments.comparison import Comparison
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.runner import Run
from tests.experiments.run_setup import TRAINING, digits, network, small_run

ONE_PHASE = {"base_classes": 0, "phases": 1}
HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)"


def test_a_run_that_another_process_works_on_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match=r"another process is working on the run in"):
            small_run(tmp_path / "run", split=ONE_PHASE, resume=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


def test_the_lock_of_a_process_that_died_is_released(tmp_path):
    command = [sys.executable, "-c", f"{HOLD}; print('held', flush=True); time.sleep(60)"]
    with subprocess.Popen([*command, str(tmp_path / "lock")], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationError, match="another process"), RunFolder(tmp_path).lock():
            pass
        process.kill()
    with RunFolder(tmp_path).lock(), RunFolder(tmp_path).lock():  # who has it can take it again
        pass


def test_a_run_that_went_on_since_it_was_read_is_not_overwritten(tmp_path):
    train, test = scenarios(digits(), **ONE_PHASE)
    options = {"memory": Memory(per_class=5), "training": TRAINING, "progress": False}
    late = Run(train, test, network, LUCIR(), output=tmp_path / "run", **options)
    small_run(tmp_path / "run", split=ONE_PHASE)
    with pytest.raises(ConfigurationError, match="since this one has read it"):
        late.finish()


def test_the_summary_has_the_seeds_of_earlier_comparisons_in_the_folder(tmp_path):
    split = scenarios(digits(), **ONE_PHASE)
    options = {"memory": Memory(per_class=5), "training": TRAINING, "progress": False}

    def compared(*seeds):
        arms = arms_of(LUCIR(), None)
        options_now = {"resume": True, "report": False, **options, "seeds": seeds}
        Comparison({"": split}, network, arms, output=tmp_path, **options_now).run()
        with open(tmp_path / "costs.csv", newline="", encoding="utf-8") as file:
            assert [int(row["seed"]) for row in csv.DictReader(file)] == sorted({0, *seeds})
        return (tmp_path / "summary.md").read_text(encoding="utf-8")

    one, two = compared(0), compared(1)
    assert "±" not in one
    assert "±" in two  # the spread over two seeds
    assert compared(0, 1) == two
