"""Queue: many runs, side by side, each started when the first phase that it shares is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.workers import Launcher, Started

SECONDS = 0.2
"""How often the queue looks at its jobs."""


@dataclass(frozen=True)
class Job:
    """A run to be done, by a function that can be pickled."""

    name: str
    folder: Path
    """The folder of the run."""
    call: Callable[[Path | None], object]
    """Does the run, or what is left of it. Its argument is the folder of a run that has trained the
    same first phase; None if there is none yet."""
    phases: int
    first_phase: Hashable = None
    """Runs for which this is equal have the same network after the first phase."""
    work: Sequence[float] = ()
    """The work of each phase, in any unit, to say how much time is left. Default: all equal."""
    rule: str = "head"
    """The rule by which its accuracy is shown."""

    @property
    def finished(self) -> bool:
        """Whether the folder has the metrics of all phases."""
        return len(RunFolder(self.folder).rows()) == self.phases

    @property
    def has_base(self) -> bool:
        """Whether the folder has the network of the first phase."""
        return RunFolder(self.folder).base.exists()


@dataclass
class Outcome:
    """What became of the jobs."""

    done: list[Job] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by the name of the job."""


class Queue:
    """Does jobs, `at_once` at a time. A job that fails does not stop the others.

    `others` are finished or unwanted runs whose first phase may be used. `watch` is told of
    everything that happens; see `Watch`.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        launcher: Launcher,
        *,
        at_once: int,
        others: Sequence[Job] = (),
        watch: Watch | None = None,
    ) -> None:
        self.jobs, self.others = list(jobs), list(others)
        self.launcher, self.at_once = launcher, at_once
        self.watch = watch or Watch()
        self.waiting = list(jobs)
        self.running: dict[str, tuple[Job, Started]] = {}
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Do all jobs. If the program is interrupted, those that run are stopped."""
        self.watch.begin(self.jobs, self._work())
        try:
            while self.waiting or self.running:
                self._start()
                self._look()
                if self.running:
                    time.sleep(SECONDS)
        finally:
            for _, started in self.running.values():
                started.stop()
            self.launcher.close()
            self.watch.end()
        return self.outcome

    def _start(self) -> None:
        for job in list(self.waiting):
            if len(self.running) == self.at_once:
                return
            base = self._base_of(job)
            busy = {other.first_phase for other, _ in self.running.values()}
            if base is None and not job.has_base and job.first_phase in busy:
                continue  # another run trains its first phase
            self.waiting.remove(job)
            self.watch.started(job)
            call = partial(job.call, base)
            started = self.launcher.start(job.name, call, job.folder / "log.txt")
            self.running[job.name] = job, started

    def _work(self) -> dict[str, list[float]]:
        """The work of the phases of each job. A shared first phase counts once."""
        work, trained = {}, set()
        for job in self.jobs:
            phases = list(job.work) or [1.0] * job.phases
            if job.first_phase is not None:
                if job.first_phase in trained or self._base_of(job) is not None:
                    phases[0] = 0.0
                trained.add(job.first_phase)
            work[job.name] = phases
        return work

    def _base_of(self, job: Job) -> Path | None:
        if job.first_phase is None:
            return None
        for other in (*self.jobs, *self.others):
            if other.first_phase == job.first_phase and other.has_base and other.name != job.name:
                return other.folder
        return None

    def _look(self) -> None:
        for job, started in list(self.running.values()):
            problem = started.poll()
            if problem is None:
                continue
            del self.running[job.name]
            if not problem and not job.finished:
                problem = "it ended before its last phase"
            if problem:
                self.outcome.failed[job.name] = problem
            else:
                self.outcome.done.append(job)
            self.watch.ended(job, problem)
        self.watch.look([job for job, _ in self.running.values()])


class Watch:
    """Is told what happens in a queue. This one does nothing."""

    def begin(self, jobs: Sequence[Job], work: dict[str, list[float]]) -> None:
        """The queue begins. `work` has the work of each phase, by the name of the job."""

    def started(self, job: Job) -> None:
        """A job has begun."""

    def look(self, running: Sequence[Job]) -> None:
        """Called again and again while jobs run."""

    def ended(self, job: Job, problem: str) -> None:
        """A job has ended; `problem` is empty if it is finished."""

    def end(self) -> None:
        """The queue is empty, or was stopped."""
