"""compare: a method with and without AANets, with the same seeds and the same first phase."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines.lifecycle import Backbone
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.arms import LEARNED, Arm, same_start
from aanets_plugin.experiments.comparison_report import write_report
from aanets_plugin.experiments.costs import Measured, cost_of, seconds_of
from aanets_plugin.experiments.report.collect import read_run
from aanets_plugin.experiments.results import RULES, Result
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.runner import Run, run
from aanets_plugin.experiments.settings import Memory, Training
from aanets_plugin.experiments.trainer import default_accelerator
from aanets_plugin.experiments.variants import RunSettings
from aanets_plugin.ranks import failing_together


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
    comparison = Comparison({"": (train, test)}, **options)
    comparison.check()
    return comparison.run()


@dataclass(frozen=True)
class Place:
    """Which run of a comparison."""

    order: str
    seed: int
    arm: str

    @property
    def name(self) -> str:
        """The name of the run's folder: ARM-SEED, or ARM-SEED-ORDER if the order has a name."""
        return "-".join([self.arm, str(self.seed), *([self.order] if self.order else [])])


class Comparison:
    """The runs of every arm with every class order and every seed, and their common report.

    Args:
        orders: the scenarios for training and testing of each class order, by a name, which may be
            empty.
        options: other arguments of `compare`, such as `memory` and `training`. The arguments that
            are listed here are as there.
    """

    def __init__(
        self,
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
    ) -> None:
        if not arms or not seeds or len(set(seeds)) < len(seeds):
            raise ConfigurationError(
                f"arms={list(arms)}, seeds={list(seeds)}: must have at least one of each, and each "
                f"seed once."
            )
        self.orders, self.backbone, self.arms = orders, backbone, arms
        self.output, self.resume = Path(output), resume
        self.accelerator = accelerator or default_accelerator()
        self.command, self.notes, self.options = command, notes, options
        self.places = [
            Place(order, seed, name) for order in orders for seed in seeds for name in arms
        ]

    @cached_property
    def phases(self) -> Phases:
        """Those of the first class order."""
        return Phases(*next(iter(self.orders.values())))

    def check(self) -> None:
        """Check the settings of all runs, and that their folders do not hold runs with others."""
        tried: dict[tuple[str, str], Run] = {}
        for place in self.places:
            kind = (place.order, place.arm)
            if kind not in tried:
                tried[kind] = self._try(place)
            config = {**tried[kind].config, "seed": place.seed}
            RunFolder(self.output / place.name).open(config, resume=self.resume)

    def run(self) -> list[Result]:
        """Do all runs and write the report. Returns the results in the order of `places`.

        Call `check` first.
        """
        results = []
        for number, place in enumerate(self.places, 1):
            start = time.monotonic()
            self.accelerator.print(
                f"run {number} of {len(self.places)}: {self.output / place.name}"
            )
            result = self.do(place, self.base_of(place))
            averages = ", ".join(
                f"{metrics[-1]['average']:.2f} by {text}"
                for rule, text in RULES.items()
                if (metrics := result.by(rule)) is not None
            )
            where = f"seed {place.seed}" + (f", {place.order}" if place.order else "")
            seconds = time.monotonic() - start
            self.accelerator.print(f"{result.arm}, {where}: average {averages} ({seconds:.0f} s)\n")
            results.append(result)
        self.report(results)
        return results

    def read(self) -> list[Result]:
        """Read the results of runs that other processes have finished, and write the report."""
        finished = [read_run(self.output / place.name) for place in self.places]
        results = [each.result for each in finished if each is not None]
        self.report(results)
        return results

    def do(self, place: Place, base: Path | None) -> Result:
        """Do one run. Its first phase is that of the run in the folder `base`, if given."""
        (train, test), arm = self.orders[place.order], self.arms[place.arm]
        options = self._options(arm)
        if options.get("source") is not None:
            options["source"] = {**options["source"], "order": place.order}
        folder = self.output / place.name
        result = run(
            train,
            test,
            arm.backbone or self.backbone,
            arm.method,
            output=folder,
            base=base,
            seed=place.seed,
            command=self.command,
            **options,
        )
        result = replace(result, arm=arm.label or result.arm, order=place.order)
        if self.accelerator.is_main_process:
            about = {"arm": result.arm, "command": self.command, "order": place.order}
            RunFolder(folder).write_about(arm.method, **about)
        return result

    def base_of(self, place: Place) -> Path | None:
        """The folder of the run whose first phase this run takes over.

        That is the run of the first arm, if both train the same network; otherwise None.
        """
        first, *_ = self.arms
        if place.arm == first or not same_start(self.arms[first], self.arms[place.arm]):
            return None
        return self.output / replace(place, arm=first).name

    def report(self, results: Sequence[Result]) -> None:
        """Write the report of all runs, given their results in the order of `places`."""
        with failing_together(self.accelerator.device):
            if self.accelerator.is_main_process:
                folders = [self.output / place.name for place in self.places]
                costs = {name: self._cost(arm) for name, arm in self.arms.items()}
                measured = [
                    Measured(result, costs[place.arm], seconds_of(folder))
                    for result, place, folder in zip(results, self.places, folders, strict=True)
                ]
                first, last = next(iter(self.arms.values())), replace(self.places[-1], arm=LEARNED)
                write_report(
                    measured,
                    first.method,
                    self.output,
                    folders,
                    self.output / last.name,
                    self.command,
                    self.notes,
                )

    def _options(self, arm: Arm) -> dict[str, Any]:
        """The arguments of `run` that do not depend on the seed and the class order."""
        own = {"memory": arm.memory, "training": arm.training}
        return {
            **self.options,
            **{name: value for name, value in own.items() if value is not None},
            "aanets": arm.aanets,
            "resume": self.resume,
            "accelerator": self.accelerator,
        }

    def _cost(self, arm: Arm) -> Any:
        options = self._options(arm)
        settings = RunSettings(
            arm.method,
            arm.aanets,
            options.get("memory") or Memory(),
            options.get("training") or Training(),
            arm.backbone or self.backbone,
        )
        return cost_of(settings, self.phases.classes, self.phases.input_shape)

    def _try(self, place: Place) -> Run:
        """Set up a run, which checks all its settings and writes nothing."""
        (train, test), arm = self.orders[place.order], self.arms[place.arm]
        try:
            return Run(
                train,
                test,
                arm.backbone or self.backbone,
                arm.method,
                output=self.output / place.name,
                seed=place.seed,
                **self._options(arm),
            )
        except (AssertionError, RuntimeError) as error:
            raise ConfigurationError(
                f"the backbone cannot process these images ({error}). Use another backbone."
            ) from error
