"""The folder of a run: settings, measurements, plots, and the checkpoints to resume from."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from aanets_plugin.alpha_history import AlphaRecord, read_csv
from aanets_plugin.baselines.method import Method
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.files import write_error, write_text

BEFORE = {"channels_last": False, "compile": "no"}
"""What runs did before it was written to config.json."""


class RunFolder:
    """Paths and files of a run.

    The folder has `config.json`, `network.json` (for `load_run`), `metrics.jsonl`, `alpha.csv`,
    `summary.md`, and the figures `accuracy` and `alpha` as .png and .pdf. Its subfolder
    `checkpoint/` has `phase.pt` (the end of the last phase), `epoch.pt` (the last epoch) and
    `base.pt` (the network after the first phase, which other runs can start from). A run that keeps
    all phases has `phase0.pt`, `phase1.pt` and so on, too. `status.json` says which epoch was the
    last, `time.json` what each phase has cost. `lock` is locked by the process that works on the
    run.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.phase = self.path / "checkpoint" / "phase.pt"
        self.epoch = self.path / "checkpoint" / "epoch.pt"
        self.base = self.path / "checkpoint" / "base.pt"

    def kept(self, phase: int) -> Path:
        """The checkpoint of a phase, in a run that keeps all of them."""
        return self.phase.with_name(f"phase{phase}.pt")

    def open(self, config: dict[str, Any], *, resume: bool) -> None:
        """Check that the folder is free, or that its run has these settings and may resume."""
        file = self.path / "config.json"
        if not file.exists():
            if self.phase.exists() or self.epoch.exists():
                raise ConfigurationError(
                    f"{self.path} holds checkpoints but no config.json. Use another output folder, "
                    f"or restore the file."
                )
            return
        if not resume:
            raise ConfigurationError(
                f"{self.path} holds a run already. Use another output folder, or resume the run "
                f"(resume=True, on the command line --resume)."
            )
        saved = read_json(file)
        saved, wanted = {**BEFORE, **saved}, json.loads(json.dumps(config))
        compared = {**wanted, **saved}.keys() - {"source"}
        if differences := describe_differences(saved, wanted, sorted(compared)):
            raise ConfigurationError(
                f"{self.path} holds a run with other settings ({differences}). Use the same "
                f"settings to resume it, or another output folder."
            )

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other processes from working on the run, or wait until none does.

        The system releases the lock of a process that dies.
        """
        # One object per folder, so that who has the lock can take it again.
        lock = filelock.FileLock(self.path / "lock", is_singleton=True)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=-1 if wait else 0)
        except filelock.Timeout:
            raise ConfigurationError(
                f"another process is working on the run in {self.path}. Wait until it has ended, "
                f"or use another output folder."
            ) from None
        except OSError as error:
            raise write_error(self.path, error) from error
        try:
            yield
        finally:
            lock.release()

    def version(self) -> list[tuple[int, int] | None]:
        """Something that changes when a process begins the run or ends one of its phases."""
        files = (self.path / "config.json", self.phase)
        stats = [file.stat() if file.exists() else None for file in files]
        return [None if stat is None else (stat.st_ino, stat.st_mtime_ns) for stat in stats]

    def write_config(self, config: dict[str, Any]) -> None:
        """Write `config.json`."""
        write_text(self.path / "config.json", json.dumps(config, indent=2) + "\n")

    def write_network(self, network: dict[str, Any]) -> None:
        """Write `network.json`."""
        text = json.dumps(network, indent=2, ensure_ascii=False) + "\n"
        write_text(self.path / "network.json", text)

    def write_about(self, method: Method, *, arm: str, command: str, order: str = "") -> None:
        """Write what reports say of the run beside its settings."""
        about = {"method": method.title, "rule": method.predicts_by, "arm": arm}
        text = json.dumps({**about, "command": command, "order": order}, ensure_ascii=False)
        write_text(self.path / "about.json", text + "\n")

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Write one line per phase."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(self.path / "metrics.jsonl", text)

    def rows(self) -> list[dict[str, Any]]:
        """What was measured, one row for each phase that is over.

        Empty if the file is damaged: a run that is resumed writes it again.
        """
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return []
        return rows if all(isinstance(row, dict) for row in rows) else []

    def write_status(self, **status: int) -> None:
        """Write how far the run is, for those who watch it from outside."""
        write_text(self.path / "status.json", json.dumps(status) + "\n")

    def status(self) -> dict[str, int]:
        """What `write_status` has written; empty before the first epoch is over."""
        try:
            return read_json(self.path / "status.json")
        except ConfigurationError:
            return {}

    def alpha(self) -> list[AlphaRecord]:
        """The history of α; empty without AANets."""
        file = self.path / "alpha.csv"
        return read_csv(file) if file.exists() else []

    def write_alpha(self, bilevel: BilevelStrategy | None) -> None:
        """Write `alpha.csv`, if α has learned."""
        if bilevel is not None and bilevel.history:
            bilevel.to_csv(self.path / "alpha.csv")


def read_json(file: Path) -> dict[str, Any]:
    """The dict in a JSON file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # also bytes that are no text
        raise ConfigurationError(
            f"{file} cannot be read ({error}). Restore it from a copy, or use another folder."
        ) from error
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{file} holds a {type(content).__name__}: must be the settings of a run. Restore it "
            f"from a copy, or use another folder."
        )
    return content


def describe_differences(saved: dict[str, Any], wanted: dict[str, Any], keys: Iterable[str]) -> str:
    """The settings that differ, for an error message; empty if all are equal."""
    return "; ".join(
        f"{key}: {saved.get(key)} there, {wanted.get(key)} now"
        for key in keys
        if saved.get(key) != wanted.get(key)
    )
