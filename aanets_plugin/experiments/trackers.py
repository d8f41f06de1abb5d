"""Trackers: the curves of a run in TensorBoard, W&B, MLflow, …, through Accelerate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType, ProjectConfiguration

from aanets_plugin.errors import ConfigurationError

TRACKERS = [name for name in LoggerType.list() if name != "all"]
"""The names that Accelerate knows."""

_PROJECT = "aanets"


def tracker_options(names: list[str] | None) -> dict[str, Any]:
    """The arguments of `Accelerator` for these trackers; an error if a package is missing.

    Examples:
        >>> tracker_options(["tensorboard"])["log_with"]
        ['tensorboard']
    """
    if not names:
        return {}
    known = [str(tracker) for tracker in get_available_trackers()]
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"--log-with {name}: needs the package {name.replace('_', '-')}, which is not "
                f"installed. Run pip install {name.replace('_', '-')}, or leave it out."
            )
    # A run writes to its own folder; Accelerate wants to know one already here.
    return {"log_with": names, "project_config": ProjectConfiguration(logging_dir=".")}


class Trackers:
    """Sends the measurements of one run to the trackers of an Accelerator, if it has any.

    `tensorboard` adds TensorBoard to them.
    """

    def __init__(self, accelerator: Accelerator, *, tensorboard: bool = False) -> None:
        self.accelerator = accelerator
        self.log_with = [*accelerator.log_with]
        if tensorboard and not any(str(tracker) == "tensorboard" for tracker in self.log_with):
            self.log_with += tracker_options(["tensorboard"])["log_with"]

    def start(self, folder: Path, config: dict[str, Any]) -> None:
        """Begin a run. Files are written to `folder`, where a tracker lets us choose."""
        accelerator = self.accelerator
        if not self.log_with or not accelerator.is_main_process:
            return
        folder.mkdir(parents=True, exist_ok=True)
        accelerator.log_with = self.log_with
        accelerator.project_configuration.logging_dir = str(folder / "tensorboard")
        name = "-".join(folder.absolute().parts[-2:])
        options = {
            "wandb": {"name": name, "dir": str(folder)},
            "mlflow": {"run_name": name},
        }
        accelerator.init_trackers(_PROJECT, dict(_flat(config)), options)

    def log(self, values: dict[str, float], step: int) -> None:
        """Add values at this epoch, counted over all phases."""
        self.accelerator.log(values, step=step)

    def finish(self) -> None:
        """Close the trackers."""
        # Accelerator.end_training would end all processes as well.
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []


def _flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings as names and plain values, which all trackers can store."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            is_plain = isinstance(value, (bool, int, float, str))
            yield prefix + key, value if is_plain else str(value)
