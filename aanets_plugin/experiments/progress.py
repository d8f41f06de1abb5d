"""Progress: shows how far the jobs of a queue are, and the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

from aanets_plugin.experiments.queue import Job, Watch
from aanets_plugin.experiments.run_folder import RunFolder

SECONDS = 1.0
"""How often the bar is drawn."""


class Progress(Watch):
    """A line for each run that ends; on a terminal also a bar with the runs that are under way."""

    def begin(self, jobs: Sequence[Job], work: dict[str, list[float]]) -> None:
        """Start the clock and, on a terminal, draw the bar."""
        self.jobs, self.work = list(jobs), work
        self.total = len(jobs)
        self.open = {job.name: job for job in jobs}
        self.start = self.drawn = time.monotonic()
        self.left_at_start = self._left()
        terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=self.left_at_start,
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {postfix}",
            disable=not terminal,
            leave=False,
        )

    def look(self, running: Sequence[Job]) -> None:
        """Draw the bar again, at most every `SECONDS`."""
        now = time.monotonic()
        if self.bar.disable or now - self.drawn < SECONDS:
            return
        self.drawn = now
        self.bar.n = self.left_at_start - self._left()
        self.bar.set_description_str(f"{self.total - len(self.open)} of {self.total} runs", False)
        each = [f"{job.name}: {describe(job)}" for job in running]
        self.bar.set_postfix_str("; ".join([*each, self.time_left()]))

    def ended(self, job: Job, problem: str) -> None:
        """Print the accuracy of a run, or why it failed."""
        del self.open[job.name]
        number = f"{self.total - len(self.open)} of {self.total}"
        rows = RunFolder(job.folder).rows()
        if problem:
            text = f"FAILED, {problem} (see {job.folder / 'log.txt'})"
        else:
            text = f"average {rows[-1][job.rule]['average']:.2f}"
        line = f"{time.strftime('%H:%M:%S')} run {number}, {job.name}: {text}"
        if self.open:
            line += f"; {self.time_left()}"
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()

    def end(self) -> None:
        """Remove the bar."""
        self.bar.close()

    def time_left(self) -> str:
        """In words. It assumes that the runs go on as fast as until now."""
        left = self._left()
        done = self.left_at_start - left
        if done <= 0:
            return "time left: not known yet"
        return f"about {duration((time.monotonic() - self.start) * left / done)} left"

    def _left(self) -> float:
        return sum(self._left_of(job) for job in self.open.values())

    def _left_of(self, job: Job) -> float:
        work = self.work[job.name]
        done = len(RunFolder(job.folder).rows())
        status = RunFolder(job.folder).status()
        left = sum(work[done:])
        if status.get("phase") == done < len(work):
            left -= work[done] * status["epoch"] / status["epochs"]
        return left


def describe(job: Job) -> str:
    """How far a run is."""
    folder = RunFolder(job.folder)
    rows, status = folder.rows(), folder.status()
    phase = len(rows)
    words = [f"phase {min(phase, job.phases - 1)} of {job.phases - 1}"]
    if status.get("phase") == phase:
        words.append(f"epoch {status['epoch']} of {status['epochs']}")
    if rows:
        words.append(f"{rows[-1][job.rule]['all']:.1f}%")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """Seconds in words.

    Examples:
        >>> duration(40), duration(5400), duration(200000)
        ('40 s', '90 min', '55.6 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
