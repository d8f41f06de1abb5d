"""comparison_from: the comparison that the options of the command line ask for."""

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, patch_environment

from aanets_plugin.baselines.method import Method
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.arms import arms_of, control_arms
from aanets_plugin.experiments.backbones import backbone_factory
from aanets_plugin.experiments.comparison import Comparison
from aanets_plugin.experiments.datasets import Data, load_data, scenarios
from aanets_plugin.experiments.presets import Setting
from aanets_plugin.experiments.request import (
    aanet_config_from,
    check_options,
    complete,
    increments_from,
    memory_from,
    setting_from,
)
from aanets_plugin.experiments.saved_config import SOURCE, NamedOrder
from aanets_plugin.experiments.settings import Memory
from aanets_plugin.experiments.splits import PAPER_SEED, describe_increments, read_order
from aanets_plugin.experiments.trackers import tracker_options
from aanets_plugin.experiments.trainer import default_accelerator
from aanets_plugin.experiments.variants import Shared


def comparison_from(method: Method, args: argparse.Namespace, command: str) -> Comparison:
    """The comparison of `method` that the options of `add_options` ask for.

    `command` is the command line, to be shown in the summary. The note of the comparison describes
    its setting in one line.
    """
    saved = complete(args)
    check_options(args)
    setting, aanets = setting_from(args, method, saved), aanet_config_from(args, saved)
    method = setting.configured(method)
    names = [*(args.log_with or []), *(["tensorboard"] if args.tensorboard else [])]
    accelerator = _make_accelerator(
        args.device,
        args.precision,
        setting.training.batch_size,
        compiles=args.compile,
        **tracker_options(list(dict.fromkeys(names))),
    )
    with accelerator.main_process_first():  # so that only one process downloads
        data = load_data(
            args.dataset,
            args.data,
            per_class=args.images_per_class,
            image_size=args.image_size,
            subset=args.subset,
            color_jitter=setting.color_jitter,
        )
        make_backbone = backbone_factory(setting.backbone, pretrained=args.pretrained)
    increments = increments_from(args, data.classes)
    orders = _orders(data, args.order, increments)
    memory = memory_from(args, setting)
    arms = arms_of(method, aanets, fixed_alpha=args.fixed_alpha, upper_bound=args.upper_bound)
    if aanets is not None:
        shared = Shared(
            make_backbone, memory, setting.training, data.classes, data.input_shape, aanets
        )
        arms |= control_arms(args.controls, method, shared)
    default = Path("runs") / method.name
    return Comparison(
        orders,
        make_backbone,
        arms,
        output=_shared_output_folder(accelerator, args.output, default, args.resume),
        seeds=args.seeds or [args.seed],
        memory=memory,
        training=setting.training,
        resume=args.resume,
        accelerator=accelerator,
        command=command,
        notes=[_describe(data, setting, memory, increments)],
        class_names=data.class_names,
        keep_phases=args.keep_phases,
        source=_source(args, setting, memory),
    )


def _source(args: argparse.Namespace, setting: Setting, memory: Memory) -> dict[str, Any]:
    """What the data and the network are made from, for --config."""
    return {
        **{name: getattr(args, name) for name in SOURCE},
        "data": None if args.data is None else str(args.data.absolute()),
        "backbone": setting.backbone,
        "color_jitter": setting.color_jitter,
        "memory": dataclasses.asdict(memory),
    }


def _orders(
    data: Data, choices: Sequence[str | NamedOrder], increments: Sequence[int]
) -> dict[str, Any]:
    """The scenarios of each class order. The name of the paper's is empty."""
    orders = {}
    for choice in choices:
        try:
            name, order = _named_order(choice, data.classes)
            if name in orders:
                raise ConfigurationError("is given twice. Leave out one of them.")
            orders[name] = scenarios(data, increments=increments, order=order)
        except ConfigurationError as error:
            given = choice.name if isinstance(choice, NamedOrder) else choice
            raise ConfigurationError(f"--order {given}: {error}") from None
    return orders


def _named_order(choice: str | NamedOrder, classes: int) -> NamedOrder:
    if isinstance(choice, NamedOrder):
        return choice
    name = "" if choice == str(PAPER_SEED) else f"order{Path(choice).stem}"
    return NamedOrder(name, read_order(choice, classes))


def _describe(data: Data, setting: Setting, memory: Memory, increments: Sequence[int]) -> str:
    """The settings that all runs share, in one line."""
    training = setting.training
    number = f"{memory.per_class} per class" if memory.total is None else f"{memory.total} in total"
    return (
        f"{data.name}, {describe_increments(increments)}; exemplars: {number}"
        f"{', fewer with AANets (strict memory)' if memory.strict else ''}; {setting.backbone}, "
        f"{training.epochs_of(0)} epochs in the first phase, {training.epochs} in the others, "
        f"batch size {training.batch_size}, learning rate {training.lr:g}"
    )


def _make_accelerator(device: str, precision: str, batch_size: int, **options: Any) -> Accelerator:
    """An accelerator on this device. Under a launcher each process has its own device."""
    has_launcher = "LOCAL_RANK" in os.environ
    environment = {}
    if not has_launcher and device not in ("auto", "cpu"):
        environment = {"ACCELERATE_TORCH_DEVICE": device}
    try:
        if environment:
            torch.zeros(1, device=device).item()  # fails on meta, which holds no data
        with patch_environment(**environment):
            state = PartialState(cpu=device == "cpu")
    except (AssertionError, RuntimeError) as error:
        raise ConfigurationError(
            f"--device {device}: cannot be used on this machine ({error})."
        ) from error
    if precision == "fp16" and state.device.type == "cpu":
        raise ConfigurationError("--precision fp16: needs a GPU. Use bf16 or no on a CPU.")
    if batch_size % state.num_processes:
        raise ConfigurationError(
            f"--batch-size {batch_size}: must be divisible by the number of processes, "
            f"{state.num_processes}."
        )
    return default_accelerator(cpu=device == "cpu", mixed_precision=precision, **options)


def _shared_output_folder(
    accelerator: Accelerator, given: Path | None, default: Path, resume: bool
) -> Path:
    """The output folder that the main process chooses, so that all processes use the same one."""
    decision: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            decision[0] = output_folder(given, default, resume)
        except ConfigurationError as error:
            decision[1] = error
    broadcast_object_list(decision)
    folder, problem = decision
    if problem is not None:
        raise problem
    assert isinstance(folder, Path)
    return folder


def output_folder(given: Path | None, default: Path, resume: bool) -> Path:
    """The folder for results: `given`, or the first of `default`, `default`-2, … that is free.

    With `resume` and no given folder, it is the last of these that exists.
    """
    if given is None:
        existing, number = default, 1
        folder = default
        while folder.exists():
            existing, number = folder, number + 1
            folder = default.with_name(f"{default.name}-{number}")
        return existing if resume else folder
    if given.exists() and not given.is_dir():
        raise ConfigurationError(f"--output {given}: is a file, must be a folder or a new name.")
    if given.resolve() == Path(given.resolve().anchor):
        raise ConfigurationError(
            f"--output {given}: is the root of the file system. Pass a folder for the results."
        )
    if not resume and any(given.glob("*/config.json")):
        raise ConfigurationError(
            f"--output {given}: holds runs already. Add --resume to continue them, or use another "
            f"folder."
        )
    return given
