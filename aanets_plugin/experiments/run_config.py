"""The settings of a run: checked against its data, and as JSON, also those of the first phase."""

import dataclasses
from typing import Any

from accelerate import Accelerator
from torch import nn

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines.method import Method
from aanets_plugin.config import DEFAULTS, AANetConfig
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments import checkpoint
from aanets_plugin.experiments.run_folder import RunFolder, describe_differences
from aanets_plugin.experiments.run_state import RunState
from aanets_plugin.experiments.settings import Memory, Training


def run_config(
    state: RunState,
    memory: Memory,
    training: Training,
    seed: int,
    phases: Phases,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """Everything that the results of a run depend on."""
    method, aanets, backbone = state.method, state.aanets, state.net.backbone
    trained = dataclasses.asdict(training)
    del trained["channels_last"]  # whether the network allows for it is what counts
    order = getattr(phases.scenarios[0], "class_order", None)
    count = sum(p.numel() for p in backbone.parameters())
    return {
        "method": method.settings(),
        "aanets": None if aanets is None else _aanets_settings(aanets),
        "memory": dataclasses.asdict(memory),
        "training": trained,
        "seed": seed,
        "backbone": f"{type(backbone).__name__}, {count} parameters",
        "data": {
            "increments": phases.increments,
            "class_order": None if order is None else [int(label) for label in order],
            "samples": phases.samples,
            "digest": phases.digest,
            "input_shape": list(phases.input_shape),
        },
        "precision": accelerator.mixed_precision,
        "processes": accelerator.num_processes,
        "channels_last": state.channels_last,
        "compile": accelerator.state.dynamo_plugin.backend.value.lower(),
    }


def _aanets_settings(config: AANetConfig) -> dict[str, Any]:
    """Four options are always written, the others only where they differ from the default.

    So the file of a run does not change when `AANetConfig` gets a new option.
    """
    settings: dict[str, Any] = {
        "blocks": config.blocks,
        "stem": config.stem,
        "alpha_lr": config.lr,
        "balanced_per_class": config.per_class,
    }
    for name, value in vars(config).items():
        if name not in ("blocks", "stem", "lr", "per_class") and value != getattr(DEFAULTS, name):
            settings[name] = value
    if config.schedule is not None:
        settings["schedule"] = getattr(config.schedule, "__name__", type(config.schedule).__name__)
    return settings


def base_config(config: dict[str, Any], method: Method, training: Training) -> dict[str, Any]:
    """Everything that the network after the first phase depends on."""
    shared = {key: config[key] for key in ("seed", "backbone", "data", "precision", "processes")}
    return {
        **shared,
        "head": method.head_type,
        **{key: value for key, value in method.settings().items() if key == "proxies"},
        "epochs": training.epochs_of(0),
        "lr": training.lr_of(0),
        "batch_size": training.batch_size,
        "momentum": training.momentum,
        "weight_decay": training.weight_decay,
        "schedule": training.schedule or method.schedule,
        "milestones": list(training.milestones),
    }


def exemplars_left(
    memory: Memory, aanets: AANetConfig | None, converted: nn.Module | None, phases: Phases
) -> Memory:
    """The memory that is left beside the converted backbone, checked against the data."""
    if converted is not None:
        memory = memory.reduced_for(converted, phases.classes, phases.input_shape)
    if memory.exemplars_per_class(phases.classes) < 1:
        raise ConfigurationError(
            f"total={memory.total}: must be ≥ {phases.classes}, one exemplar for each of the "
            f"{phases.classes} classes."
        )
    fewest = min(phases.smallest)
    if memory.per_class is not None and fewest < memory.per_class:
        raise ConfigurationError(
            f"per_class={memory.per_class} exemplars: must be ≤ {fewest}, since a class has only "
            f"{fewest} training samples."
        )
    most = min(fewest, memory.exemplars_per_class(phases.classes))
    if aanets is not None and (aanets.per_class or 0) > most:
        raise ConfigurationError(
            f"per_class={aanets.per_class} samples to balance α on: must be ≤ {most}, since a "
            f"class has only {most} at the end of the run."
        )
    return memory


def load_base(folder: RunFolder, wanted: dict[str, Any], net: nn.Module) -> None:
    """Load the network of another run after its first phase, if trained with `wanted`."""
    file = folder.base
    state = checkpoint.load(file, checkpoint.BASE)
    if state is None:
        raise ConfigurationError(
            f"base={str(folder.path)!r}: {file} does not exist. Run the first phase there."
        )
    with checkpoint.using(file):
        saved = _of_first_phase(state["config"])
    wanted = _of_first_phase(wanted)
    if differences := describe_differences(saved, wanted, wanted):
        raise ConfigurationError(
            f"base={str(folder.path)!r}: its first phase was trained with other settings "
            f"({differences}). Use the same settings, or leave out base."
        )
    with checkpoint.using(file):
        net.load_state_dict(state["net"])


def _of_first_phase(base_config: dict[str, Any]) -> dict[str, Any]:
    """The same without what concerns later phases alone.

    The digest is that of all samples with their labels in the class order. So with the same digest
    and equally many classes the first phase is the same.
    """
    data = base_config["data"]
    first = {name: data[name][0] for name in ("increments", "samples")}
    return {**base_config, "data": {**data, **first}}
