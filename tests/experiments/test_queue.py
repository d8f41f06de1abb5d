"""The queue: order, shared first phases, failures. Processes are in test_many_runs.py."""

from __future__ import annotations

import json

import pytest

from aanets_plugin.experiments.queue import Job, Queue
from aanets_plugin.experiments.workers import environments

PHASES = 3


class Steps:
    """A launcher without processes: a job takes `PHASES` looks, and trains its first phase in the
    first of them."""

    def __init__(self, broken=()):
        self.broken, self.log, self.most, self.open = broken, [], 0, 0

    def start(self, name, call, log):
        launcher = self
        launcher.log.append((name, call.args[0]))
        launcher.open += 1
        launcher.most = max(launcher.most, launcher.open)

        class Started:
            phase = 0

            def poll(self):
                if self.phase == PHASES or name in launcher.broken:
                    launcher.open -= 1
                    return "it is broken" if name in launcher.broken else ""
                self.phase += 1
                call(self.phase)
                return None

            def stop(self):
                launcher.log.append((name, "stopped"))

        return Started()

    def close(self):
        self.log.append("closed")


def write(folder, base, phase):
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    if base is None:
        (folder / "checkpoint" / "base.pt").touch()
    rows = [json.dumps({"head": {"average": 50.0}}) for _ in range(phase)]
    (folder / "metrics.jsonl").write_text("\n".join(rows))


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr("aanets_plugin.experiments.queue.SECONDS", 0)


def job(tmp_path, name, key):
    folder = tmp_path / name
    return Job(name, folder, lambda base, phase: write(folder, base, phase), PHASES, key)


def run(tmp_path, names, *, at_once, broken=()):
    launcher = Steps(broken)
    queue = Queue([job(tmp_path, n, n[0]) for n in names], launcher, at_once=at_once)
    return launcher, queue.run()


def test_a_first_phase_is_trained_once_and_waited_for(tmp_path):
    launcher, outcome = run(tmp_path, ["a1", "a2", "b1", "b2"], at_once=2)
    started = dict(launcher.log[:-1])
    assert list(started) == ["a1", "b1", "a2", "b2"]  # a2 waits for a1
    assert started == {"a1": None, "b1": None, "a2": tmp_path / "a1", "b2": tmp_path / "b1"}
    assert len(outcome.done) == 4
    assert launcher.most == 2


def test_a_failed_run_is_reported_and_does_not_stop_the_others(tmp_path):
    launcher, outcome = run(tmp_path, ["a1", "a2", "a3"], at_once=1, broken=["a1"])
    assert outcome.failed == {"a1": "it is broken"}
    assert [done.name for done in outcome.done] == ["a2", "a3"]
    assert dict(launcher.log[:-1])["a2"] is None  # a1 left no first phase
    assert launcher.log[-1] == "closed"


def test_a_run_that_ends_too_early_has_failed(tmp_path):
    early = Job("a1", tmp_path / "a1", lambda base, phase: None, PHASES, "a")
    outcome = Queue([early], Steps(), at_once=1).run()
    assert outcome.failed == {"a1": "it ended before its last phase"}


def test_what_runs_is_stopped_when_the_program_is_interrupted(tmp_path):
    def interrupt(base, phase):
        raise KeyboardInterrupt

    launcher = Steps()
    queue = Queue([Job("a1", tmp_path, interrupt, PHASES)], launcher, at_once=1)
    with pytest.raises(KeyboardInterrupt):
        queue.run()
    assert launcher.log[-2:] == [("a1", "stopped"), "closed"]


def test_a_shared_first_phase_counts_once_in_the_time_that_is_left(tmp_path):
    jobs = [job(tmp_path, name, name[0]) for name in ("a1", "a2", "b1")]
    work = Queue(jobs, Steps(), at_once=1)._work()
    assert work == {"a1": [1, 1, 1], "a2": [0, 1, 1], "b1": [1, 1, 1]}


def test_threads_do_not_depend_on_the_number_of_jobs_on_a_cpu(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    one, two = environments(1, None, gpus=0), environments(2, None, gpus=0)
    assert one[0] == two[0] == two[1]
    assert one[0]["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments(3, None, gpus=2)] == ["4", "6", "4"]
