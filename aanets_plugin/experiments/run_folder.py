"""A run's folder: what was asked for, what was measured, pictures, and the state to go on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aanets_plugin.baselines.method import Rule
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments import checkpoint
from aanets_plugin.experiments.results import Result, plot_accuracy, write_summary
from aanets_plugin.plots import plot_alpha


class RunFolder:
    """`config.json`, `metrics.jsonl`, `alpha.csv`, `accuracy.png`, `alpha.png`, `summary.md`, and
    `checkpoint/` with `phase.pt` (the end of the last phase), `epoch.pt` (the last epoch since) and
    `base.pt` (the network after the first phase, for other runs to start from)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.phase = self.path / "checkpoint" / "phase.pt"
        self.epoch = self.path / "checkpoint" / "epoch.pt"
        self.base = self.path / "checkpoint" / "base.pt"

    def open(self, config: dict[str, Any], *, resume: bool) -> None:
        """Check that the folder is free, or holds the run that is to go on."""
        file = self.path / "config.json"
        if not file.exists():
            if self.phase.exists() or self.epoch.exists():
                raise ConfigurationError(
                    f"{self.path} holds checkpoints of a run and no config.json that would say "
                    f"which. Give another output folder, or put the file back."
                )
            return
        if not resume:
            raise ConfigurationError(
                f"{self.path} holds a run already. Give another output folder, or resume it "
                f"(resume=True, --resume)."
            )
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"{file} cannot be read: {error}.") from error
        wanted = json.loads(json.dumps(config))
        different = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
        if different:
            lines = "; ".join(
                f"{key}: {found.get(key)} there, {wanted.get(key)} now" for key in different
            )
            raise ConfigurationError(
                f"{self.path} holds a run with other settings ({lines}). Give the same settings to "
                f"go on, or another output folder."
            )

    def write_config(self, config: dict[str, Any]) -> None:
        checkpoint.write_text(self.path / "config.json", json.dumps(config, indent=2) + "\n")

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """One line per phase."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        checkpoint.write_text(self.path / "metrics.jsonl", text)

    def write_alpha(self, bilevel: BilevelStrategy | None) -> None:
        if bilevel is not None and bilevel.history:
            bilevel.to_csv(self.path / "alpha.csv")

    def write_report(
        self,
        result: Result,
        bilevel: BilevelStrategy | None,
        *,
        heading: str,
        command: str,
        reported: Rule,
    ) -> None:
        """Pictures and the summary, at the end."""
        if bilevel is not None and bilevel.history:
            plot_alpha(bilevel.history, self.path / "alpha.png")
        plot_accuracy([result], self.path / "accuracy.png", rule=reported, title=heading)
        write_summary(
            self.path / "summary.md",
            [result],
            heading=heading,
            command=command,
            reported=reported,
        )
