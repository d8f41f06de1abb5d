"""compare: a method with and without AANets, with the same seeds and the same first phase."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines.joint import Joint
from aanets_plugin.baselines.lifecycle import Backbone
from aanets_plugin.baselines.method import Method
from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.accuracy_plot import plot_accuracy
from aanets_plugin.experiments.costs import (
    Measured,
    cost_of,
    costs_csv,
    costs_table,
    seconds_of,
)
from aanets_plugin.experiments.report.collect import Finished, read_finished
from aanets_plugin.experiments.report.page import write_page
from aanets_plugin.experiments.results import RULES, UPPER_BOUND, Result, write_summary
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.runner import Run, run
from aanets_plugin.experiments.settings import Memory, Training
from aanets_plugin.experiments.trainer import default_accelerator
from aanets_plugin.experiments.variants import CONTROLS, VARIANTS, RunSettings, Shared
from aanets_plugin.files import replacing, write_text
from aanets_plugin.plot_style import save

PLAIN, LEARNED, FIXED, JOINT = "plain", "learned", "fixed", "joint"
"""The names of the arms in the names of their folders."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a method, on the plain network or with AANets.

    What is None is as in the other arms.
    """

    method: Method
    aanets: AANetConfig | None = None
    memory: Memory | None = None
    training: Training | None = None
    backbone: Backbone | None = None
    label: str | None = None
    """The name in reports. Default: that of the kind of run, such as "AANets, learned α"."""


def arms_of(
    method: Method,
    aanets: AANetConfig | None,
    *,
    fixed_alpha: bool = False,
    upper_bound: bool = False,
) -> dict[str, Arm]:
    """The usual arms of a comparison by name. The arm "plain" is `method` without AANets.

    Args:
        aanets: adds the arm "learned" with these options; None: the plain network alone.
        fixed_alpha: adds the arm "fixed", in which α keeps its initial weights.
        upper_bound: adds the arm "joint", which trains on all data seen so far.
    """
    arms = {PLAIN: Arm(method)}
    if aanets is not None:
        arms[LEARNED] = Arm(method, aanets)
    if aanets is not None and fixed_alpha:
        arms[FIXED] = Arm(method, replace(aanets, lr=0.0))
    if upper_bound:
        arms[JOINT] = Arm(Joint())
    return arms


def control_arms(names: Sequence[str], method: Method, shared: Shared) -> dict[str, Arm]:
    """Fair controls by name: what else the cost of AANets could be spent on.

    "memory": the plain network with the exemplars that the additional parameters of AANets would
    buy; "compute": with as many more epochs as AANets cost; "wider": with as many parameters;
    "all_all": two branches that learn everything.
    """
    arms = {}
    for name in names:
        if name not in CONTROLS:
            raise ConfigurationError(f"control {name!r}: must be one of {', '.join(CONTROLS)}.")
        variant = VARIANTS[name]
        own = shared.settings(method, variant)
        backbone = own.backbone if variant.width != "equal" else None
        arms[name] = Arm(method, own.aanets, own.memory, own.training, backbone, variant.label)
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
    class_names: Sequence[str] | None = None,
    keep_phases: bool = False,
) -> list[Result]:
    """Run every arm with every seed and write a common report.

    The settings of all arms are checked before the first one is trained. An arm that would train
    the same network in the first phase as the first arm takes it over from there. Returns the
    results, all arms of the first seed first. Arguments that are not listed are those of `run`.

    Args:
        arms: the arms by name, as `arms_of` returns them.
        output: the folder of the comparison. Each run has a subfolder ARM-SEED. At the end the
            folder gets `accuracy.png`, `alpha.png` (of the last seed), `summary.md`, `report.html`,
            and `costs.md` and `costs.csv` with the parameters, FLOPs, memory and time beside the
            metrics.
        seeds: one run of each arm per seed.
        notes: lines for the summary.

    Example::

        train, test = scenarios(load_data("digits"), base_classes=4, phases=3)
        results = compare(train, test, resnet20, arms_of(LUCIR(), AANets()), output="runs/lucir")
        print(results_table(results))
    """
    options = {key: value for key, value in locals().items() if key not in ("train", "test")}
    return compare_orders({"": (train, test)}, **options)


def compare_orders(
    orders: Mapping[str, tuple[Any, Any]],
    backbone: Backbone,
    arms: Mapping[str, Arm],
    *,
    output: str | Path,
    seeds: Sequence[int] = (0,),
    resume: bool = False,
    accelerator: Accelerator | None = None,
    command: str = "",
    notes: Sequence[str] = (),
    **options: Any,
) -> list[Result]:
    """Run every arm with every class order and every seed and write a common report.

    Args:
        orders: the scenarios for training and testing of each class order, by a name. The folder of
            a run is ARM-SEED-NAME, or ARM-SEED where the name is empty.
        options: other arguments of `compare`, such as `memory` and `training`. The arguments that
            are listed here are as there.
    """
    if not arms or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigurationError(
            f"arms={list(arms)}, seeds={list(seeds)}: must have at least one of each, and each "
            f"seed once."
        )
    output, accelerator = Path(output), accelerator or default_accelerator()
    shared: dict[str, Any] = {**options, "accelerator": accelerator}
    for order, (train, test) in orders.items():
        for name, arm in arms.items():
            folders = {seed: output / run_name(name, seed, order) for seed in seeds}
            own = {**shared, **_own(arm)}
            phases = _check(train, test, arm.backbone or backbone, arm, own, folders, resume)

    first, *_ = arms
    results, measured = [], []
    todo = [(order, seed, name) for order in orders for seed in seeds for name in arms]
    for number, (order, seed, name) in enumerate(todo, 1):
        train, test = orders[order]
        arm, folder = arms[name], output / run_name(name, seed, order)
        base = None
        if name != first and same_start(arms[first], arm):
            base = output / run_name(first, seed, order)
        start = time.monotonic()
        accelerator.print(f"run {number} of {len(todo)}: {folder}")
        result = run(
            train,
            test,
            arm.backbone or backbone,
            arm.method,
            aanets=arm.aanets,
            output=folder,
            base=base,
            seed=seed,
            resume=resume,
            command=command,
            **_with_order({**shared, **_own(arm)}, order),
        )
        if arm.label is not None:
            result = replace(result, arm=arm.label)
        averages = ", ".join(
            f"{metrics[-1]['average']:.2f} by {text}"
            for rule, text in RULES.items()
            if (metrics := result.by(rule)) is not None
        )
        seconds = time.monotonic() - start
        where = f"seed {seed}" + (f", {order}" if order else "")
        accelerator.print(f"{result.arm}, {where}: average {averages} ({seconds:.0f} s)\n")
        results.append(replace(result, order=order))
        if accelerator.is_main_process:
            about = {"arm": result.arm, "command": command, "order": order}
            RunFolder(folder).write_about(arm.method, **about)
        settings = _settings(arm, backbone, options)
        cost = cost_of(settings, phases.classes, phases.input_shape)
        measured.append(Measured(results[-1], cost, seconds_of(folder)))
    if accelerator.is_main_process:
        measured = _with_other_seeds(measured, {output / run_name(n, s, o) for o, s, n in todo})
        last = output / run_name(LEARNED, seeds[-1], list(orders)[-1])
        _report(
            [each.result for each in measured], arms[first].method, output, last, command, notes
        )
        rule = arms[first].method.predicts_by
        write_text(output / "costs.md", costs_table(measured, rule))
        write_text(output / "costs.csv", costs_csv(measured, rule))
    accelerator.wait_for_everyone()
    return results


def _own(arm: Arm) -> dict[str, Any]:
    """The settings in which an arm differs from the others."""
    own = {"memory": arm.memory, "training": arm.training}
    return {name: value for name, value in own.items() if value is not None}


def _settings(arm: Arm, backbone: Backbone, options: Mapping[str, Any]) -> RunSettings:
    """All settings of the runs of an arm."""
    return RunSettings(
        arm.method,
        arm.aanets,
        arm.memory or options.get("memory") or Memory(),
        arm.training or options.get("training") or Training(),
        arm.backbone or backbone,
    )


def run_name(arm: str, seed: int, order: str = "") -> str:
    """The name of a run's folder in the folder of a comparison."""
    return "-".join([arm, str(seed), *([order] if order else [])])


def _with_order(options: dict[str, Any], order: str) -> dict[str, Any]:
    source = options.get("source")
    return options if source is None else {**options, "source": {**source, "order": order}}


def _check(
    train: Any,
    test: Any,
    backbone: Backbone,
    arm: Arm,
    options: dict[str, Any],
    folders: Mapping[int, Path],
    resume: bool,
) -> Phases:
    """Set up a run, which checks all its settings and writes nothing. Return its phases.

    It also looks into the folders of the seeds, which may hold runs with other settings.
    """
    options = {**options, "aanets": arm.aanets, "resume": resume}
    (first, output), *_ = folders.items()
    try:
        tried = Run(train, test, backbone, arm.method, output=output, seed=first, **options)
    except (AssertionError, RuntimeError) as error:
        raise ConfigurationError(
            f"the backbone cannot process these images ({error}). Use another backbone."
        ) from error
    for seed, folder in folders.items():
        RunFolder(folder).open({**tried.config, "seed": seed}, resume=resume)
    return tried.phases


def _with_other_seeds(measured: list[Measured], folders: set[Path]) -> list[Measured]:
    """Add finished runs in the same folder, from earlier, that differ from these by seed alone."""
    (output,) = {folder.parent for folder in folders}
    runs, _ = read_finished(output)
    same = [_but_seed(run) for run in runs if run.folder in folders]
    costs = {each.result.arm: each.cost for each in measured}
    others = [
        Measured(run.result, costs[run.result.arm], seconds_of(run.folder))
        for run in runs
        if run.folder not in folders and _but_seed(run) in same and run.result.arm in costs
    ]
    return sorted([*measured, *others], key=lambda each: each.result.seed) if others else measured


def _but_seed(run: Finished) -> Any:
    return run.result.arm, run.result.order, {**run.config, "seed": None, "source": None}


def same_start(first: Arm, arm: Arm) -> bool:
    """Whether both arms train the same network in the first phase."""
    ours, theirs = arm.method, first.method
    is_same_method = (ours.head_type, ours.schedule) == (theirs.head_type, theirs.schedule)
    return is_same_method and arm.backbone is first.backbone


def _report(
    results: list[Result],
    method: Method,
    output: Path,
    learned: Path,
    command: str,
    notes: Sequence[str],
) -> None:
    rule = method.predicts_by
    # Joint training keeps no exemplars and so has no nearest means: plot it by its head.
    shown = [
        replace(result, arm=f"{result.arm}, by head", nearest_mean=result.head)
        if result.arm == UPPER_BOUND and result.by(rule) is None
        else result
        for result in results
    ]
    figure = plot_accuracy(shown, rule=rule, title=method.title)
    save(figure, output / "accuracy.png", ".pdf")
    for alpha in learned.glob("alpha.p*"):  # .png and .pdf
        with replacing(output / alpha.name) as temporary:
            shutil.copyfile(alpha, temporary)
    write_summary(
        output / "summary.md",
        results,
        heading=f"{method.title} with and without AANets",
        command=command,
        notes=notes,
        reported=rule,
    )
    write_page(output)
