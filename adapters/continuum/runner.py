"""One run: a method on a Continuum scenario, with AANets or without, through all phases.

A phase is: grow the head, learn (α after each epoch), remember, fine-tune, measure, save. Random
numbers follow from the seed, the phase and the epoch, so what is saved after an epoch is all there
is, and a run that was killed ends as one that was not.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, broadcast
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from aanets_plugin.baselines.method import Method
from aanets_plugin.baselines.metrics import PhaseMetrics, phase_metrics
from aanets_plugin.baselines.nearest_mean import class_means, nearest_mean
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.errors import ConfigurationError, NonFiniteLossError
from aanets_plugin.levels import levels
from aanets_plugin.optim import parameter_groups

from . import checkpoint
from .folder import RunFolder
from .loaders import balanced_loader
from .memory import (
    pixel_bounds,
    put_images,
    rehearsal_memory,
    restore,
    state_of,
    with_samples,
)
from .network import (
    Backbone,
    HeadLesson,
    Lesson,
    build,
    extract,
    teacher_of,
)
from .phases import Phases
from .randomness import generator, seed_everything
from .report import RULES, Result
from .settings import AANets, Memory, Training


def run(train: Any, test: Any, backbone: Backbone, method: Method, **options: Any) -> Result:
    """Run all phases and return what was measured; see :class:`Run` for the options.

    Example:
        >>> train, test = scenarios(load_data("digits"), base_classes=4, phases=3)
        >>> result = run(train, test, lambda: resnet20(), LUCIR(), output="runs/lucir")
        >>> result.head[-1]["average"]
    """
    return Run(train, test, backbone, method, **options).finish()


class Run:
    """A run that can be stopped and resumed.

    Args:
        train, test: Continuum's ClassIncremental scenarios, with the same class order.
        backbone: a network, with or without a classifier, or a function that makes one.
        method: one of `aanets_plugin.baselines.methods`.
        aanets: settings of the architecture; None for the plain network.
        memory: exemplars per class or in total; 20 per class by default.
        training: the lower level's settings.
        seed: of everything that is random.
        output: the run's folder.
        resume: go on where the run in `output` was stopped; starts one if there is none.
        base: the folder of a run whose first phase is taken over instead of trained. Its seed,
            data, backbone, head and training must be the same.
        accelerator: Accelerate's, for devices and precision; with `split_batches`.
        tensorboard: also write curves to `output`/tensorboard.
        progress: show progress bars.
        command: the command line, for the summary.
    """

    def __init__(
        self,
        train: Any,
        test: Any,
        backbone: Backbone,
        method: Method,
        *,
        output: str | Path,
        aanets: AANets | None = None,
        memory: Memory | None = None,
        training: Training | None = None,
        seed: int = 0,
        resume: bool = False,
        base: str | Path | None = None,
        accelerator: Accelerator | None = None,
        tensorboard: bool = False,
        progress: bool = True,
        command: str = "",
    ) -> None:
        self.phases = Phases(train, test)
        self.backbone, self.method, self.aanets = backbone, method, aanets
        self.training = training or Training()
        self.seed, self.base, self.command = seed, base, command
        self.accelerator = accelerator or default_accelerator()
        self.is_main = self.accelerator.is_main_process
        self.show = progress and self.is_main
        self.rows: list[dict[str, Any]] = []
        self.bilevel: BilevelStrategy | None = None

        seed_everything(seed)
        self.net = build(backbone, method, self.phases.increments[0], self.phases.input_shape)
        self.memory = self._checked_memory(memory or Memory(per_class=20))
        self.exemplars = rehearsal_memory(self.memory, self.phases.classes)
        self.config = self._config()
        self.folder = RunFolder(output)
        self.folder.open(self.config, resume=resume)
        self._load_phase()
        self.base_state = self._load_base() if not self.rows else None
        if self.is_main:
            self.folder.write_config(self.config)
        self.writer = self._tensorboard() if tensorboard and self.is_main else None
        self.net.to(self.accelerator.device)

    # -- the phases ----------------------------------------------------------------------------

    def finish(self) -> Result:
        """Run the phases that are left, write the report, and return what was measured."""
        left = range(len(self.rows), len(self.phases))
        bar = self._bar(left, self.arm, "phase", len(self.rows), len(self.phases), leave=True)
        for phase in bar:
            self._learn(phase)
            if not self.method.keeps_all_data:
                self._remember(phase)
                self._fine_tune(phase)
            self._measure(phase)
            self._save_phase(phase)
            bar.set_postfix({rule: f"{r[-1]['all']:.1f}" for rule, r in self._by_rule()})
        result = self.result
        if self.is_main:
            heading = f"{self.method.name}: {self.arm}, seed {self.seed}"
            self.folder.write_report(
                result, heading=heading, command=self.command, reported=self.method.predicts_by
            )
        return result

    def _learn(self, phase: int) -> None:
        """Train all epochs of a phase, from the last one that was saved."""
        new = self.phases.train(phase)
        teacher = None
        if phase:
            if not self.method.keeps_all_data:
                teacher = teacher_of(self.net)
            self._grow(phase)
        if self.bilevel is not None:
            self.bilevel.begin_phase()
        lr, epochs = self.training.lr_of(phase), self.training.epochs_of(phase)
        data = copy.copy(new)
        if self.method.keeps_all_data:
            data = self.phases.train_so_far(phase)
        elif len(self.exemplars):
            data.add_samples(*self.exemplars.get())

        self.accelerator.free_memory()
        groups = parameter_groups(self.net, lr, self.training.weight_decay)
        lesson, optimizer = self.accelerator.prepare(
            Lesson(self.method, self.net, teacher),
            torch.optim.SGD(groups, lr=lr, momentum=self.training.momentum),
        )
        done = epochs if self.base_state is not None else self._load_epoch(phase, optimizer)
        schedule = self.training.schedule or self.method.schedule
        for epoch in self._bar(range(done, epochs), f"phase {phase}", "epoch", done, epochs):
            for group in optimizer.param_groups:
                group["lr"] = lr * self.training.factor(epoch, epochs, schedule)
            self._train_epoch(lesson, optimizer, data, phase, epoch)
            self._update_alpha(new, phase, epoch)
            self._save_epoch(phase, epoch, optimizer)
        if phase == 0:
            self._end_base()
        elif self.bilevel is not None:
            self.bilevel.end_phase()

    def _grow(self, phase: int) -> None:
        """More classes for the head, by the features of their samples."""
        seed_everything(self.seed, phase)
        features, labels, _ = self._extract(self.phases.train_as_test(phase))
        new, draw = self.phases.increments[phase], generator(self.seed, phase)
        grown = self.method.grow(self.net.fc, new, features, labels, draw)
        self.net.fc = grown.to(self.accelerator.device)

    def _end_base(self) -> None:
        """Keep the trained base for other runs; with AANets it becomes the stable branch."""
        if self.base_state is not None:
            self.net.load_state_dict(self.base_state)
            self.base_state = None
        elif self.is_main:
            checkpoint.save(self.folder.base, {"settings": self._base_settings(), **self._state()})
        if self.aanets is not None:
            self._convert(self.aanets)

    def _convert(self, aanets: AANets) -> None:
        convert_to_aanet(self.net.backbone, blocks=aanets.blocks, stem=aanets.stem)
        self.bilevel = BilevelStrategy(self.net, lr=aanets.alpha_lr)
        self.bilevel.begin_phase()  # the base phase, which is over
        self.bilevel.end_phase()

    def _train_epoch(
        self, lesson: nn.Module, optimizer: Any, data: Any, *where: int, name: str = "batches"
    ) -> None:
        seed_everything(self.seed, *where, 1, self.accelerator.process_index)
        loader = self._loader(data, generator(self.seed, *where))
        lesson.train()
        total = torch.zeros((), device=self.accelerator.device)
        for x, y, *_ in self._bar(loader, name, "batch"):
            optimizer.zero_grad()
            loss = lesson(x, y)
            self.accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        mean = float(total) / len(loader)
        if not math.isfinite(mean):
            raise NonFiniteLossError(
                f"the training loss is {mean} in phase {where[0]}, epoch {where[-1]}; lower the "
                f"learning rate, {self.training.lr} now. The state before this epoch is saved."
            )
        self._log("loss", mean, *where)

    def _update_alpha(self, new: Any, phase: int, epoch: int) -> None:
        if self.bilevel is None:
            return
        assert self.aanets is not None
        seed_everything(self.seed, phase, epoch, 2, self.accelerator.process_index)
        per_class = self.aanets.balanced_per_class

        def balanced() -> Iterable[Any]:
            loader = balanced_loader(
                new,
                self.exemplars,
                per_class=per_class,
                batch_size=self.training.batch_size,
                generator=generator(self.seed, phase),
                num_workers=self.training.workers,
            )
            prepared: Iterable[Any] = self.accelerator.prepare_data_loader(loader)
            return prepared

        with self.accelerator.autocast():
            self.bilevel.after_epoch(balanced)
        for record in self.bilevel.history[-len(levels(self.net)) :]:
            self._log(f"alpha/{record.level}", record.weights[0], phase, epoch)

    def _remember(self, phase: int) -> None:
        """Herd exemplars of the new classes; the method may learn better ones."""
        data = self.phases.train_as_test(phase)
        features, _, _ = self._extract(data)
        self.exemplars.add(*data.get_raw_samples(), features)
        rows = np.flatnonzero(self.exemplars._y >= self.phases.seen(phase - 1))
        shown = with_samples(data, tuple(part[rows] for part in self.exemplars.get()))
        images, labels = (torch.stack([torch.as_tensor(s[i]) for s in shown]) for i in (0, 1))
        seed_everything(self.seed, phase, 3)
        draw = generator(self.seed, phase, 3)
        mean, std = pixel_bounds(self.phases.test_transforms)
        refined = self.method.refine(
            self.net,
            images,
            labels,
            DataLoader(data, batch_size=self.training.batch_size, shuffle=True, generator=draw),
            (-mean / std, (1 - mean) / std),
            draw,
        )
        if refined is not None:
            refined = broadcast(refined)
            folder = self.folder.path / "exemplars"
            put_images(self.exemplars, rows, refined, self.phases.test_transforms, folder)

    def _fine_tune(self, phase: int) -> None:
        """The method's last training on exemplars, if it has one."""
        tuning = self.method.fine_tuning
        if tuning is None or phase == 0:
            return
        data = with_samples(self.phases.train(phase), self.exemplars.get())
        fixed = [p for p in self.net.fc.parameters() if not p.requires_grad]
        for parameter in fixed:
            parameter.requires_grad_(True)
        lesson: nn.Module = Lesson(self.method, self.net, None)
        groups = parameter_groups(self.net, tuning.lr, self.training.weight_decay)
        if tuning.head_only:
            lesson = HeadLesson(self.method, self.net)
            groups = parameter_groups(self.net.fc, tuning.lr, self.training.weight_decay)
        self.accelerator.free_memory()
        lesson, optimizer = self.accelerator.prepare(
            lesson, torch.optim.SGD(groups, lr=tuning.lr, momentum=self.training.momentum)
        )
        for epoch in self._bar(range(tuning.epochs), "fine-tuning", "epoch"):
            for group in optimizer.param_groups:
                group["lr"] = tuning.lr * self.training.factor(epoch, tuning.epochs, "cosine")
            self._train_epoch(lesson, optimizer, data, phase, 4, epoch)
        for parameter in fixed:
            parameter.requires_grad_(False)

    # -- measuring -------------------------------------------------------------------------------

    def _measure(self, phase: int) -> None:
        """Accuracy on the test samples of all classes seen, by each rule, from one pass."""
        features, labels, _ = self._extract(self.phases.test_so_far(phase))
        with torch.no_grad():
            logits = self.net.fc(features.to(self.accelerator.device))
        predictions = {"head": logits.argmax(1).cpu()}
        if len(self.exemplars):
            shown = with_samples(self.phases.test_so_far(0), self.exemplars.get())
            means = class_means(*self._extract(shown, flip=self.phases.flips))
            predictions["nearest_mean"] = nearest_mean(features, *means)
        row: dict[str, Any] = {"phase": phase, "classes": self.phases.seen(phase)}
        for rule, predicted in predictions.items():
            earlier = [PhaseMetrics(**r[rule]) for r in self.rows]
            found = phase_metrics(predicted, labels, self.phases.increments[: phase + 1], earlier)
            row[rule] = dataclasses.asdict(found)
            self._log(f"accuracy/{rule}", found.all, phase)
        self.rows.append(row)

    def _by_rule(self) -> list[tuple[str, list[dict[str, Any]]]]:
        return [(rule, [r[rule] for r in self.rows]) for rule in RULES if rule in self.rows[0]]

    @property
    def arm(self) -> str:
        if self.method.keeps_all_data:
            return "upper bound"
        if self.aanets is None:
            return "plain"
        return f"AANets, {'learned' if self.aanets.alpha_lr else 'fixed'} α"

    @property
    def result(self) -> Result:
        found = dict(self._by_rule())
        return Result(
            arm=self.arm,
            seed=self.seed,
            classes=[row["classes"] for row in self.rows],
            head=found["head"],
            nearest_mean=found.get("nearest_mean"),
        )

    # -- state -----------------------------------------------------------------------------------

    def _save_epoch(self, phase: int, epoch: int, optimizer: Any) -> None:
        if self.is_main:
            state = {"phase": phase, "epoch": epoch, "optimizer": optimizer.state_dict()}
            if self.accelerator.scaler is not None:
                state["scaler"] = self.accelerator.scaler.state_dict()
            checkpoint.save(self.folder.epoch, {**state, **self._state()})
        self.accelerator.wait_for_everyone()

    def _load_epoch(self, phase: int, optimizer: Any) -> int:
        """Go on from the last epoch of this phase that was saved; how many are done."""
        state = checkpoint.load(self.folder.epoch)
        if state is None or state["phase"] != phase:
            return 0
        optimizer.load_state_dict(state["optimizer"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self._restore(state)
        return int(state["epoch"]) + 1

    def _save_phase(self, phase: int) -> None:
        if self.is_main:
            state: dict[str, Any] = {"rows": self.rows, **self._state()}
            if len(self.exemplars):
                state["exemplars"] = state_of(self.exemplars)
            self.folder.write_metrics(self.rows)
            self.folder.write_alpha(self.bilevel)
            checkpoint.save(self.folder.phase, state)
        self.accelerator.wait_for_everyone()

    def _load_phase(self) -> None:
        """Go on from the last phase that was saved, if there is one."""
        state = checkpoint.load(self.folder.phase)
        if state is None:
            return
        self.rows = state["rows"]
        for increment in self.phases.increments[1 : len(self.rows)]:
            self.net.fc = self.method.grow(self.net.fc, increment)
        if self.aanets is not None:
            self._convert(self.aanets)
        self._restore(state)
        if "exemplars" in state:
            restore(self.exemplars, state["exemplars"])

    def _state(self) -> dict[str, Any]:
        bilevel = None if self.bilevel is None else self.bilevel.state_dict()
        return {"net": self.net.state_dict(), "bilevel": bilevel}

    def _restore(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        if self.bilevel is not None:
            self.bilevel.load_state_dict(state["bilevel"])

    def _load_base(self) -> dict[str, Tensor] | None:
        """The network that another run had after its first phase."""
        if self.base is None:
            return None
        file = RunFolder(self.base).base
        state = checkpoint.load(file)
        if state is None:
            raise ConfigurationError(
                f"base={self.base}: {file} does not exist; run the first phase there."
            )
        wanted = self._base_settings()
        different = [key for key in wanted if state["settings"].get(key) != wanted[key]]
        if different:
            lines = "; ".join(
                f"{key}: {state['settings'].get(key)} there, {wanted[key]} now" for key in different
            )
            raise ConfigurationError(
                f"base={self.base} was trained with other settings ({lines}); its first phase "
                f"cannot stand for that of this run."
            )
        return state["net"]  # type: ignore[no-any-return]

    def _base_settings(self) -> dict[str, Any]:
        """All that the network after the first phase depends on."""
        training = self.training
        return {
            "seed": self.seed,
            "data": self.config["data"],
            "backbone": self.config["backbone"],
            "head": self.method.head_type,
            "epochs": training.epochs_of(0),
            "lr": training.lr_of(0),
            "batch_size": training.batch_size,
            "momentum": training.momentum,
            "weight_decay": training.weight_decay,
            "schedule": training.schedule or self.method.schedule,
            "milestones": list(training.milestones),
        }

    def _config(self) -> dict[str, Any]:
        train, _ = self.phases.scenarios
        order = getattr(train, "class_order", None)
        return {
            "method": self.method.settings(),
            "aanets": None if self.aanets is None else dataclasses.asdict(self.aanets),
            "memory": dataclasses.asdict(self.memory),
            "training": dataclasses.asdict(self.training),
            "seed": self.seed,
            "backbone": describe(self.net.backbone),
            "data": {
                "increments": self.phases.increments,
                "class_order": None if order is None else [int(label) for label in order],
                "samples": self.phases.samples,
                "input_shape": list(self.phases.input_shape),
            },
            "precision": self.accelerator.mixed_precision,
            "processes": self.accelerator.num_processes,
        }

    # -- small things ----------------------------------------------------------------------------

    def _checked_memory(self, memory: Memory) -> Memory:
        """The memory in exemplars; an error if a class does not have as many samples."""
        if self.aanets is not None:
            trial = copy.deepcopy(self.net.backbone)
            convert_to_aanet(trial, blocks=self.aanets.blocks, stem=self.aanets.stem)
            memory = memory.left_beside(trial, self.phases.classes, self.phases.input_shape)
        if memory.of_each(self.phases.classes) < 1:
            raise ConfigurationError(
                f"a memory of {memory.total} exemplars has none for each of {self.phases.classes} "
                f"classes; give at least {self.phases.classes}."
            )
        fewest = min(self.phases.smallest)
        if memory.per_class is not None and fewest < memory.per_class:
            raise ConfigurationError(
                f"{memory.per_class} exemplars of each class are asked for, and a class has "
                f"{fewest} training samples. Ask for at most {fewest}."
            )
        return memory

    def _extract(self, data: Any, flip: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        return extract(
            self.net,
            data,
            self.accelerator,
            batch_size=self.training.batch_size,
            workers=self.training.workers,
            flip=flip,
        )

    def _loader(self, data: Any, draw: torch.Generator) -> Any:
        return self.accelerator.prepare_data_loader(
            DataLoader(
                data,
                batch_size=self.training.batch_size,
                shuffle=True,
                generator=draw,
                num_workers=self.training.workers,
            )
        )

    def _bar(
        self,
        what: Any,
        name: str,
        unit: str,
        done: int = 0,
        total: int | None = None,
        leave: bool = False,
    ) -> Any:
        return tqdm(
            what,
            desc=name,
            unit=unit,
            initial=done,
            total=total or len(what),
            leave=leave,
            disable=not self.show,
        )

    def _tensorboard(self) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                "tensorboard=True needs the package tensorboard: pip install tensorboard."
            ) from error
        return SummaryWriter(self.folder.path / "tensorboard")

    def _log(self, name: str, value: float, phase: int, *epoch: int) -> None:
        if self.writer is not None and len(epoch) < 2:
            before = sum(self.training.epochs_of(p) for p in range(phase + (not epoch)))
            self.writer.add_scalar(name, value, before + sum(epoch))


def default_accelerator(**options: Any) -> Accelerator:
    """Accelerate with whole batches shared by the processes, whatever their number."""
    return Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True), **options)


def describe(backbone: nn.Module) -> str:
    count = sum(p.numel() for p in backbone.parameters())
    return f"{type(backbone).__name__}, {count} parameters"
