"""SavedConfig: the settings in a run's config.json, to start other runs from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from aanets_plugin.baselines import METHODS
from aanets_plugin.baselines.method import Method
from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import AANetError, ConfigurationError
from aanets_plugin.experiments.run_folder import BEFORE
from aanets_plugin.experiments.settings import AANets, Training


class NamedOrder(NamedTuple):
    """A class order, and its name in the names of runs."""

    name: str
    classes: list[int]


@dataclasses.dataclass(frozen=True)
class SavedConfig:
    """The settings of a run. What its file does not say is None."""

    file: Path
    method: Method | None
    """None for joint training, which is not compared with AANets."""
    aanets: AANetConfig | None
    training: Training
    options: dict[str, Any]
    """Values of the command line's options by their names."""
    color_jitter: bool

    @classmethod
    def read(cls, path: Path) -> SavedConfig:
        """Read a config.json, or the one in a run's folder."""
        file = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            return cls._from_dict(file, {**BEFORE, **config})
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            problem = f"cannot be read ({error})"
        except (AANetError, KeyError, TypeError, AttributeError) as error:
            problem = f"is not the config.json of a run ({type(error).__name__}: {error})"
        raise ConfigurationError(
            f"--config {path}: {problem}. Pass the config.json of a run, or the run's folder."
        )

    @classmethod
    def _from_dict(cls, file: Path, config: dict[str, Any]) -> SavedConfig:
        source = config.get("source", {})
        data, hyperparameters = config["data"], dict(config["method"])
        name = hyperparameters.pop("name")
        method = METHODS[name](**hyperparameters) if name in METHODS else None
        training = {**config["training"], "channels_last": config["channels_last"]}
        training["milestones"] = tuple(training["milestones"])
        # What was asked for: a strict memory is stored as what is left of it.
        memory = source.get("memory", config["memory"])
        order = data["class_order"]
        options = {
            **{key: source.get(key) for key in SOURCE},
            "data": None if source.get("data") is None else Path(source["data"]),
            "increments": data["increments"],
            "order": None if order is None else [NamedOrder(source.get("order", ""), order)],
            "memory_per_class": memory["per_class"],
            "memory_total": memory["total"],
            "strict_memory": memory["strict"] or None,
            "seed": config["seed"],
            "precision": config["precision"],
            "compile": config["compile"] != "no",
        }
        return cls(
            file=file,
            method=method,
            aanets=None if config["aanets"] is None else AANets(**config["aanets"]),
            training=Training(**training),
            options=options,
            color_jitter=source.get("color_jitter", False),
        )


SOURCE = ("dataset", "data", "images_per_class", "image_size", "subset", "backbone", "pretrained")
"""The options of the command line that say where data and network come from."""
