"""Launchers of jobs: `Workers`, processes of this machine, and `Submitit`, jobs of a cluster."""

from __future__ import annotations

import gc
import itertools
import multiprocessing as mp
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from aanets_plugin.errors import ConfigurationError

Call = Callable[[], object]
"""What a job does. It must be possible to pickle it."""


class Started(Protocol):
    """A job that was started."""

    def poll(self) -> str | None:
        """None while it runs, "" if it ended well, otherwise what went wrong."""

    def stop(self) -> None:
        """End the job now."""


class Launcher(Protocol):
    """A place where jobs can be started."""

    def start(self, name: str, call: Call, log: Path) -> Started:
        """Start a job. What it prints goes to the file `log`."""

    def close(self) -> None:
        """End what is left of the launcher."""


# -- this machine --------------------------------------------------------------------------------


class Workers:
    """Processes of this machine. Each does one job at a time and stays for the next one.

    A process ends when the program that started it ends, whatever ends it. `environments` are
    environment variables, one dict for each process.
    """

    def __init__(self, environments: list[dict[str, str]]) -> None:
        self.workers = [_Worker(environment) for environment in environments]

    def start(self, name: str, call: Call, log: Path) -> Started:
        """Give a job to a process that is free; there must be one."""
        worker = next(worker for worker in self.workers if not worker.busy)
        worker.begin(call, log)
        return worker

    def close(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.close()


def environments(jobs: int, threads: int | None, gpus: int) -> list[dict[str, str]]:
    """The environment of each of `jobs` processes: its threads, and its GPU if there are any.

    By default a process has one thread on a CPU, so that results do not depend on the number of
    jobs; beside a GPU the processes share the cores.

    Examples:
        >>> [found["CUDA_VISIBLE_DEVICES"] for found in environments(3, 1, gpus=2)]
        ['0', '1', '0']
    """
    if threads is None:
        threads = max(1, (os.cpu_count() or 1) // jobs) if gpus else 1
    own = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = own.split(",") if own else [str(number) for number in range(gpus)]
    found = []
    for job in range(jobs):
        variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if gpus:
            variables["CUDA_VISIBLE_DEVICES"] = names[job % len(names)]
        found.append(variables)
    return found


class _Worker:
    """One process of `Workers`, which is started with its first job."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.process: Any = None
        self.pipe: Any = None
        self.busy = False

    def begin(self, call: Call, log: Path) -> None:
        if self.process is None:
            self._open()
        self.pipe.send((call, log))
        self.busy = True

    def _open(self) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            self.process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        theirs.close()

    def poll(self) -> str | None:
        if not self.pipe.poll():
            return None
        self.busy = False
        try:
            return str(self.pipe.recv())
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            self.process = None
            died = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return f"its process ended with {died}"

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.join(timeout=10)
            self.process.kill()
            self.close()
        self.busy = False

    def close(self) -> None:
        if self.process is not None:
            self.pipe.close()  # which ends an idle worker
            self.process.join()
            self.process = None


def _work(pipe: Connection) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program that started it ends it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError):
        for number in itertools.count():
            call, log = pipe.recv()
            if number == 0:
                gc.freeze()  # the modules: a run collects garbage before each phase
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "a", encoding="utf-8") as file:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                    os.dup2(file.fileno(), stream.fileno())
            pipe.send(_outcome(call))


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _outcome(call: Call) -> str:
    """Do a job; what went wrong, or "" ."""
    try:
        call()
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return ""


# -- a cluster -----------------------------------------------------------------------------------


class Submitit:
    """Jobs of a Slurm cluster through submitit.

    One that is preempted or runs out of time is queued again and goes on from its last checkpoint.
    `folder` is for submitit's files, `options` are those of its `update_parameters`, such as
    `slurm_partition` and `timeout_min`. `cluster="local"` starts processes on this machine.
    """

    def __init__(
        self, folder: Path, options: Mapping[str, Any] | None = None, *, cluster: str = "slurm"
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ConfigurationError(
                "--launcher slurm: needs the package submitit. Run pip install submitit."
            ) from error
        try:
            self.executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self.executor.update_parameters(**(options or {}))
        except (RuntimeError, NameError, ValueError, AssertionError) as error:
            raise ConfigurationError(
                f"--launcher slurm: submitit cannot use it ({error}). Check --slurm, and that "
                f"sbatch is on this machine, or use --launcher local."
            ) from error

    def start(self, name: str, call: Call, log: Path) -> Started:
        """Submit a job to the cluster."""
        self.executor.update_parameters(name=name)
        return _Submitted(self.executor.submit(Requeued(call)))

    def close(self) -> None:
        """Nothing is left."""


class Requeued:
    """A job that submitit queues again as it is, since it resumes by itself."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __call__(self) -> None:
        """Do the job."""
        self.call()

    def checkpoint(self) -> Any:
        """Called by submitit before a job is stopped: submit it again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Submitted:
    def __init__(self, job: Any) -> None:
        self.job = job

    def poll(self) -> str | None:
        if not self.job.done():
            return None
        error = self.job.exception()
        if error is None:
            return ""
        lines = str(error).strip().splitlines()
        return next((line for line in lines if re.match(r"[\w.]+Error\b", line)), lines[0])

    def stop(self) -> None:
        self.job.cancel()
