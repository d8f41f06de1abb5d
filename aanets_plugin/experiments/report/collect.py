"""Reads the folder of a run or of a comparison for its report."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aanets_plugin.alpha_history import AlphaRecord
from aanets_plugin.baselines import METHODS, Joint
from aanets_plugin.baselines.method import Method, Rule
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.results import FIXED, LEARNED, PLAIN, RULES, UPPER_BOUND, Result
from aanets_plugin.experiments.run_folder import RunFolder

_ORDER = (PLAIN, LEARNED, FIXED)
"""The arms that come first, in this order."""


@dataclass(frozen=True)
class Finished:
    """A finished run, as its folder has it."""

    folder: Path
    config: dict[str, Any]
    result: Result
    alpha: list[AlphaRecord]
    method: str
    """The method's name in tables and figures."""
    rule: Rule
    """The rule that the method's authors report."""
    command: str
    cost: dict[str, Any]
    branches: dict[str, Any]
    grad_cam: str
    """The picture in base64; empty if there is none."""


def read_finished(folder: Path) -> tuple[list[Finished], int]:
    """Read the run in `folder`, or the runs in its subfolders; also count unfinished ones."""
    folders = [folder]
    if not (folder / "config.json").exists():
        folders = sorted(path.parent for path in folder.glob("*/config.json"))
    runs = [run for each in folders if (run := read_run(each)) is not None]
    runs.sort(key=lambda run: _ORDER.index(a) if (a := run.result.arm) in _ORDER else len(_ORDER))
    if not runs:
        raise ConfigurationError(
            f"{folder} holds no finished run. Pass the folder of a run or of a comparison, which "
            f"`aanets run` names at its start."
        )
    return runs, len(folders) - len(runs)


def read_run(folder: Path) -> Finished | None:
    """Read the run in `folder`; None if it is not finished."""
    own = RunFolder(folder)
    config, rows = _json(folder / "config.json"), own.rows()
    if len(rows) < len(config["data"]["increments"]):
        return None
    about = {**_about(config), **_json(folder / "about.json")}
    by_rule: Any = {rule: [row[rule] for row in rows] for rule in RULES if rule in rows[0]}
    classes = [row["classes"] for row in rows]
    result = Result(about["arm"], config["seed"], classes, order=about["order"], **by_rule)
    picture = folder / "grad_cam.png"
    return Finished(
        folder,
        config,
        result,
        own.alpha(),
        about["method"],
        about["rule"],
        about["command"],
        _json(folder / "cost.json"),
        _json(folder / "branches.json"),
        base64.b64encode(picture.read_bytes()).decode() if picture.exists() else "",
    )


def _about(config: dict[str, Any]) -> dict[str, Any]:
    """What is known of a run of an earlier version, which has no about.json."""
    name = config["method"]["name"]
    known: dict[str, type[Method]] = {**METHODS, Joint.name: Joint}
    method = known.get(name)
    title, rule = (name, "head") if method is None else (method.title, method.predicts_by)
    return {"method": title, "rule": rule, "arm": _arm(config), "command": "", "order": ""}


def _arm(config: dict[str, Any]) -> str:
    if config["method"]["name"] == Joint.name:
        return UPPER_BOUND
    if config["aanets"] is None:
        return PLAIN
    return LEARNED if config["aanets"]["alpha_lr"] else FIXED


def _json(file: Path) -> dict[str, Any]:
    """The contents of a file; empty if it does not exist."""
    if not file.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error}. Restore it, or delete it."
        ) from error
    return found
