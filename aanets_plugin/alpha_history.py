"""The history of α: a record for each update and level, in memory, in CSV files and in states."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from aanets_plugin.files import replacing
from aanets_plugin.levels import named_levels


@dataclasses.dataclass(frozen=True)
class AlphaRecord:
    """α of one level after one update.

    `weights` are those of the branches, the plastic one first: (plastic, stable). `loss` is the
    balanced loss before the update, None if α is fixed.
    """

    phase: int
    epoch: int
    level: str
    weights: tuple[float, ...]
    loss: float | None


def records_of(model: nn.Module, phase: int, epoch: int, loss: float | None) -> list[AlphaRecord]:
    """Return a record of each level of a model with a frozen base."""
    records = []
    for name, level in named_levels(model).items():
        assert level.alpha is not None
        records.append(AlphaRecord(phase, epoch, name, tuple(level.alpha.tolist()), loss))
    return records


def write_csv(history: Sequence[AlphaRecord], path: str | PathLike[str]) -> None:
    """Write a CSV file with one row per record."""
    branches = max((len(record.weights) for record in history), default=0)
    with (
        replacing(Path(path)) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        weights = [f"alpha_{branch}" for branch in range(branches)]
        writer.writerow(["phase", "epoch", "level", "loss", *weights])
        for r in history:
            writer.writerow([r.phase, r.epoch, r.level, r.loss, *r.weights])


def read_csv(path: str | PathLike[str]) -> list[AlphaRecord]:
    """Return the records in a file of `write_csv`."""
    with open(path, newline="", encoding="utf-8") as file:
        return [
            AlphaRecord(
                int(row["phase"]),
                int(row["epoch"]),
                row["level"],
                tuple(float(row[name]) for name in row if name.startswith("alpha_")),
                float(row["loss"]) if row["loss"] else None,
            )
            for row in csv.DictReader(file)
        ]


def to_state(history: Sequence[AlphaRecord]) -> list[dict[str, Any]]:
    """Return the records as dicts, for a state_dict."""
    return [dict(vars(record)) for record in history]


def from_state(state: Sequence[dict[str, Any]]) -> list[AlphaRecord]:
    """Return the records in a state_dict."""
    return [AlphaRecord(**{**record, "weights": tuple(record["weights"])}) for record in state]
