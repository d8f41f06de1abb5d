"""keep_time: what the phases of a run cost, in time.json of its folder."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.files import write_text

SECONDS = 5.0
"""How often the time is written."""
CLOCKS = {"cpu_seconds": time.process_time, "wall_seconds": time.monotonic}


@contextmanager
def keep_time(folder: Path) -> Iterator[None]:
    """Write the seconds that each phase takes to time.json while the run goes on in this block.

    Processor time says what a run costs even if the machine has other work; both are kept. A run
    that is stopped loses at most the last `SECONDS`.
    """
    watch = _Stopwatch(folder)
    watch.write()
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(SECONDS):
            watch.write()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        watch.write()


def read_time(folder: Path) -> dict[str, Any]:
    """The contents of time.json; empty if there is none."""
    file = folder / "time.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


class _Stopwatch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.times = read_time(folder)
        self.last = {name: clock() for name, clock in CLOCKS.items()}

    def write(self) -> None:
        """Add the time since the last call to the phase that is under way."""
        phase = len(RunFolder(self.folder).rows())
        for name, clock in CLOCKS.items():
            seconds = self.times.setdefault(name, [])
            seconds += [0.0] * (phase + 1 - len(seconds))
            now = clock()
            seconds[phase] = round(seconds[phase] + now - self.last[name], 1)
            self.last[name] = now
        versions = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
        text = json.dumps({**self.times, **versions}) + "\n"
        write_text(self.folder / "time.json", text)
