"""Jobs of submitit, by its local executor. This file imports little: each job imports it again."""

from __future__ import annotations

import functools
import os
import signal
import time

import pytest

from aanets_plugin import ConfigurationError
from aanets_plugin.experiments.workers import Submitit

pytestmark = pytest.mark.slow


def interrupted_once(folder):
    """Waits to be interrupted the first time, and ends well the second time."""
    if (folder / "first").exists():
        (folder / "second").touch()
        return
    (folder / "first").write_text(str(os.getpid()))
    time.sleep(60)


def test_submitit_starts_an_interrupted_job_again(tmp_path):
    launcher = Submitit(tmp_path / "jobs", {"timeout_min": 2}, cluster="local")
    started = launcher.start(
        "one", functools.partial(interrupted_once, tmp_path), tmp_path / "log.txt"
    )
    assert started.poll() is None
    while not (tmp_path / "first").exists() or not (tmp_path / "first").read_text():
        time.sleep(0.05)
    os.kill(int((tmp_path / "first").read_text()), signal.SIGUSR2)  # as Slurm does
    while started.poll() is None:
        time.sleep(0.05)
    assert started.poll() == ""
    assert (tmp_path / "second").exists()


def test_a_failed_job_of_submitit_says_why(tmp_path):
    launcher = Submitit(tmp_path / "jobs", cluster="local")
    started = launcher.start("one", functools.partial(int, "x"), tmp_path / "log.txt")
    while started.poll() is None:
        time.sleep(0.05)
    assert "ValueError" in started.poll()


def test_slurm_that_is_not_there_is_an_error_before_the_first_run(tmp_path):
    with pytest.raises(ConfigurationError, match="--launcher slurm: submitit cannot use it"):
        Submitit(tmp_path, {"slurm_nonsense": 1})
