"""The command line of the examples: options, checks, one comparison, its table."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list, patch_environment

from aanets_plugin.baselines.method import Method
from aanets_plugin.errors import AANetError, ConfigurationError
from aanets_plugin.experiments.backbones import backbone
from aanets_plugin.experiments.comparison import arms_of, compare
from aanets_plugin.experiments.datasets import Data, load_data, scenarios
from aanets_plugin.experiments.options import check, parser
from aanets_plugin.experiments.presets import Setting, setting
from aanets_plugin.experiments.results import PLAIN, Result, paired_table, results_table
from aanets_plugin.experiments.settings import AANets, Memory
from aanets_plugin.experiments.trainer import default_accelerator


def main(
    method: Method, argv: Sequence[str] | None = None, *, description: str | None = None
) -> list[Result]:
    """Compare `method` with and without AANets as the command line says, and print the table.

    What is wrong with the options ends the program with a message and the code 2, before any
    training. Under `accelerate launch` or `torchrun` the main process alone prints and writes.
    """
    options = parser(method, description)
    args = options.parse_args(argv)
    given = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", sys.argv[0], *given])
    is_main = os.environ.get("RANK", "0") == "0"
    try:
        return _compare(method, args, command)
    except AANetError as error:
        if is_main:
            options.error(str(error))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        if is_main:
            print("stopped; the same command with --resume goes on", file=sys.stderr)
        raise SystemExit(130) from None


def _compare(method: Method, args: argparse.Namespace, command: str) -> list[Result]:
    check(args)
    chosen = _setting(args)
    accelerator = _accelerator(args.device, args.precision, chosen.batch_size)
    with accelerator.main_process_first():  # a download is done once
        data = load_data(
            args.dataset, args.data, per_class=args.images_per_class, image_size=args.image_size
        )
        make = backbone(chosen.backbone, pretrained=args.pretrained)
    base_classes, phases = chosen.split(data.classes, args.base_classes, args.phases)
    train, test = scenarios(data, base_classes=base_classes, phases=phases)
    per_class = chosen.memory_per_class if args.memory_total is None else None
    memory = Memory(per_class=per_class, total=args.memory_total, strict=args.strict_memory)
    aanets = None if args.no_aanet else _aanets(args)
    arms = arms_of(method, aanets, fixed_alpha=args.fixed_alpha, upper_bound=args.upper_bound)
    usual = Path("runs") / method.name
    output = _agreed_folder(accelerator, args.output, usual, args.resume)
    about = _describe(data, chosen, memory, base_classes, phases)
    taken = f", as {usual} is taken" if not (args.output or args.resume or output == usual) else ""
    accelerator.print(f"{method.name}: {about}. Results go to {output}{taken}\n")
    results = compare(
        train,
        test,
        make,
        arms,
        output=output,
        seeds=args.seeds or [args.seed],
        memory=memory,
        training=chosen.training(),
        resume=args.resume,
        accelerator=accelerator,
        tensorboard=args.tensorboard,
        command=command,
        notes=[about],
    )
    if accelerator.is_main_process:
        print(results_table(results, reported=method.predicts_by))
        if len(arms) > 1:
            print(paired_table(results, PLAIN, reported=method.predicts_by))
        for name in ("accuracy.png", "alpha.png", "summary.md"):
            if (output / name).exists():
                print(output / name)
    return results


def _describe(data: Data, chosen: Setting, memory: Memory, base_classes: int, phases: int) -> str:
    """What all runs share, in a line."""
    first = f"{base_classes} classes first, then " if base_classes else ""
    each = (data.classes - base_classes) // phases
    number = f"{memory.per_class} of each class" if memory.total is None else f"{memory.total}"
    return (
        f"{data.name}, {first}{phases} x {each} classes; exemplars: {number}"
        f"{', less with AANets (strict memory)' if memory.strict else ''}; {chosen.backbone}, "
        f"{chosen.base_epochs} epochs in the first phase, {chosen.epochs} in the others, batches "
        f"of {chosen.batch_size}, learning rate {chosen.lr:g}"
    )


def _setting(args: argparse.Namespace) -> Setting:
    """The dataset's settings, with what the command line says otherwise."""
    chosen = setting(args.dataset, args.preset).with_epochs(args.epochs, args.base_epochs)
    names = ("backbone", "batch_size", "lr", "memory_per_class", "workers")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    chosen = replace(chosen, **given)
    chosen.training()  # which checks the numbers
    return chosen


def _aanets(args: argparse.Namespace) -> AANets:
    given: dict[str, Any] = {"stem": args.stem, "alpha_lr": args.alpha_lr}
    if args.blocks is not None:
        given["blocks"] = tuple(args.blocks.split("+"))
    return AANets(**{name: value for name, value in given.items() if value is not None})


def _accelerator(device: str, precision: str, batch_size: int) -> Accelerator:
    """Accelerate on this device; under a launcher each process has its own."""
    alone = "LOCAL_RANK" not in os.environ
    chosen = {"ACCELERATE_TORCH_DEVICE": device} if alone and device not in ("auto", "cpu") else {}
    try:
        if chosen:
            torch.empty(0, device=device)
        with patch_environment(**chosen):
            state = PartialState(cpu=device == "cpu")
    except (AssertionError, RuntimeError) as error:
        raise ConfigurationError(f"--device {device} cannot be used here ({error})") from error
    if precision == "fp16" and state.device.type == "cpu":
        raise ConfigurationError("--precision fp16 needs a GPU; take bf16 or no on a CPU")
    if batch_size % state.num_processes:
        raise ConfigurationError(
            f"a batch of {batch_size} cannot be shared evenly by {state.num_processes} processes; "
            f"pass a --batch-size that can"
        )
    return default_accelerator(cpu=device == "cpu", mixed_precision=precision)


def _agreed_folder(accelerator: Accelerator, given: Path | None, usual: Path, resume: bool) -> Path:
    """The main process decides, so that no other finds what that one has begun to write."""
    decision: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            decision[0] = output_folder(given, usual, resume)
        except ConfigurationError as error:
            decision[1] = error
    broadcast_object_list(decision)
    folder, problem = decision
    if problem is not None:
        raise problem
    assert isinstance(folder, Path)
    return folder


def output_folder(given: Path | None, default: Path, resume: bool) -> Path:
    """Where results go: the folder given, or `default`, or the next free `default`-2, -3, …

    To resume, the folder given, or the last of the default ones.
    """
    if given is None:
        taken, number = default, 1
        folder = default
        while folder.exists():
            taken, number = folder, number + 1
            folder = default.with_name(f"{default.name}-{number}")
        return taken if resume else folder
    if given.exists() and not given.is_dir():
        raise ConfigurationError(f"--output {given} is a file; expected a folder, or a free name")
    if not resume and any(given.glob("*/config.json")):
        raise ConfigurationError(
            f"--output {given} holds runs already; add --resume to go on with them, or give "
            f"another folder"
        )
    return given
