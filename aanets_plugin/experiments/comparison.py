"""A method with and without AANets, from the same first phase and seed, side by side."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from aanets_plugin.baselines.joint import Joint
from aanets_plugin.baselines.lifecycle import Backbone
from aanets_plugin.baselines.method import Method
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.results import (
    RULES,
    UPPER_BOUND,
    Result,
    plot_accuracy,
    write_summary,
)
from aanets_plugin.experiments.runner import Run, run
from aanets_plugin.experiments.settings import AANets, Memory, Training
from aanets_plugin.experiments.trainer import default_accelerator

PLAIN, LEARNED, FIXED, JOINT = "plain", "learned", "fixed", "joint"


@dataclass(frozen=True)
class Arm:
    """What is compared: a method on the plain network, or on AANets with these settings."""

    method: Method
    aanets: AANets | None = None


def arms_of(
    method: Method, aanets: AANets | None, *, fixed_alpha: bool = False, upper_bound: bool = False
) -> dict[str, Arm]:
    """The arms by the names of their folders: the plain network, AANets with learned α, and, if
    asked for, with α fixed at its start and joint training."""
    arms = {PLAIN: Arm(method)}
    if aanets is not None:
        arms[LEARNED] = Arm(method, aanets)
    if aanets is not None and fixed_alpha:
        arms[FIXED] = Arm(method, replace(aanets, alpha_lr=0.0))
    if upper_bound:
        arms[JOINT] = Arm(Joint())
    return arms


def compare(
    train: Any,
    test: Any,
    backbone: Backbone,
    arms: Mapping[str, Arm],
    *,
    output: str | Path,
    seeds: Sequence[int] = (0,),
    memory: Memory | None = None,
    training: Training | None = None,
    resume: bool = False,
    accelerator: Accelerator | None = None,
    tensorboard: bool = False,
    progress: bool = True,
    command: str = "",
    notes: Sequence[str] = (),
) -> list[Result]:
    """Run each arm with each seed in `output`/ARM-SEED, and draw and write what came of it.

    Everything is checked before the first run is trained. The other arms start from the plain
    run's first phase where theirs would be the same. `output` gets `accuracy.png`, `alpha.png` (of
    the last seed) and `summary.md`. Args that are not named here are those of `run`.

    Args:
        arms: as `arms_of` makes them; the first is the one that the others start from.
        notes: lines for the summary.

    Example:
        >>> train, test = scenarios(load_data("digits"), base_classes=4, phases=3)
        >>> compare(train, test, resnet20, arms_of(LUCIR(), AANets()), output="runs/lucir")
    """
    if not arms or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigurationError(
            f"arms={list(arms)}, seeds={list(seeds)}: expected at least one of each, and no seed "
            f"twice"
        )
    output, accelerator = Path(output), accelerator or default_accelerator()
    options: dict[str, Any] = {"memory": memory, "training": training, "accelerator": accelerator}
    for arm in arms.values():
        _check(train, test, backbone, arm, options)

    first, *_ = arms
    results = []
    todo = [(seed, name) for seed in seeds for name in arms]
    for number, (seed, name) in enumerate(todo, 1):
        arm, folder = arms[name], output / f"{name}-{seed}"
        base = None
        if name != first and same_start(arms[first], arm):
            base = output / f"{first}-{seed}"
        start = time.monotonic()
        accelerator.print(f"run {number} of {len(todo)}: {folder}")
        result = run(
            train,
            test,
            backbone,
            arm.method,
            aanets=arm.aanets,
            output=folder,
            base=base,
            seed=seed,
            # The main process judges the folder; the others may find what that one has just begun.
            resume=resume,
            tensorboard=tensorboard,
            progress=progress,
            command=command,
            **options,
        )
        found = ", ".join(
            f"{metrics[-1]['average']:.2f} by {text}"
            for rule, text in RULES.items()
            if (metrics := result.by(rule)) is not None
        )
        seconds = time.monotonic() - start
        accelerator.print(f"{result.arm}, seed {seed}: average {found} ({seconds:.0f} s)\n")
        results.append(result)
    if accelerator.is_main_process:
        _report(results, arms[first].method, output, seeds[-1], command, notes)
    accelerator.wait_for_everyone()
    return results


def _check(train: Any, test: Any, backbone: Backbone, arm: Arm, options: dict[str, Any]) -> None:
    """Set a run up as if it was to start, and leave it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            Run(train, test, backbone, arm.method, aanets=arm.aanets, output=folder, **options)
        except (AssertionError, RuntimeError) as error:
            raise ConfigurationError(
                f"the network does not take these images ({error}); take another backbone"
            ) from error


def same_start(first: Arm, arm: Arm) -> bool:
    """Whether both arms train the same network in the first phase."""
    ours, theirs = arm.method, first.method
    return (ours.head_type, ours.schedule) == (theirs.head_type, theirs.schedule)


def _report(
    results: list[Result],
    method: Method,
    output: Path,
    seed: int,
    command: str,
    notes: Sequence[str],
) -> None:
    rule = method.predicts_by
    # Joint training keeps no exemplars, so it has no nearest mean: its curve is by its head.
    shown = [
        replace(result, arm=f"{result.arm}, by head", nearest_mean=result.head)
        if result.arm == UPPER_BOUND and result.by(rule) is None
        else result
        for result in results
    ]
    plot_accuracy(shown, output / "accuracy.png", rule=rule, title=method.name)
    alpha = output / f"{LEARNED}-{seed}" / "alpha.png"
    if alpha.exists():
        shutil.copyfile(alpha, output / alpha.name)
    write_summary(
        output / "summary.md",
        results,
        heading=f"{method.name} with and without AANets",
        command=command,
        notes=notes,
        reported=rule,
    )
