"""What a run was asked to do, as JSON; and what of that its first phase depends on."""

from __future__ import annotations

import dataclasses
from typing import Any

from accelerate import Accelerator
from torch import nn

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines.method import Method
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments import checkpoint
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.settings import AANets, Memory, Training


def run_config(
    method: Method,
    aanets: AANets | None,
    memory: Memory,
    training: Training,
    seed: int,
    backbone: nn.Module,
    phases: Phases,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """All that the numbers of a run depend on."""
    order = getattr(phases.scenarios[0], "class_order", None)
    count = sum(p.numel() for p in backbone.parameters())
    return {
        "method": method.settings(),
        "aanets": None if aanets is None else dataclasses.asdict(aanets),
        "memory": dataclasses.asdict(memory),
        "training": dataclasses.asdict(training),
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
    }


def base_config(config: dict[str, Any], method: Method, training: Training) -> dict[str, Any]:
    """All that the network after the first phase depends on."""
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


def load_base(folder: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """The network that the run in `folder` had after its first phase, if that was as `wanted`."""
    file = RunFolder(folder).base
    state = checkpoint.load(file)
    if state is None:
        raise ConfigurationError(
            f"base={str(folder)!r}: {file} does not exist; run the first phase there."
        )
    found = state["config"]
    different = [key for key in wanted if found.get(key) != wanted[key]]
    if different:
        lines = "; ".join(f"{key}: {found.get(key)} there, {wanted[key]} now" for key in different)
        raise ConfigurationError(
            f"base={str(folder)!r} was trained with other settings ({lines}); its first phase "
            f"cannot stand for that of this run."
        )
    net: dict[str, Any] = state["net"]
    return net
