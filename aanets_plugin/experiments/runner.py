"""run: a method on a Continuum scenario, with AANets or without, through all phases.

The steps of a phase: grow the head, train (with an α update after each epoch), choose exemplars,
fine-tune, measure, save. Random numbers depend on the seed, the phase and the epoch alone, so a
checkpoint need not store their state, and a resumed run is bit-identical.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from aanets_plugin.adapters.continuum.loaders import balanced_loader
from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines.lifecycle import Backbone, MethodLoss, grow_head
from aanets_plugin.baselines.method import Method
from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments import checkpoint
from aanets_plugin.experiments.network_description import network_description
from aanets_plugin.experiments.new_state import new_state
from aanets_plugin.experiments.phase_end import fine_tune, measure, remember
from aanets_plugin.experiments.processes import share_statistics, telling_of_failures
from aanets_plugin.experiments.randomness import generator, seed_everything
from aanets_plugin.experiments.results import RULES, Result
from aanets_plugin.experiments.run_config import base_config, load_base, run_config
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.run_report import report_run
from aanets_plugin.experiments.run_time import keep_time
from aanets_plugin.experiments.settings import Memory, Training
from aanets_plugin.experiments.trackers import Trackers
from aanets_plugin.experiments.trainer import Trainer, check_momentum, default_accelerator
from aanets_plugin.levels import named_levels


def run(
    train: Any,
    test: Any,
    backbone: Backbone,
    method: Method,
    *,
    output: str | Path,
    aanets: AANetConfig | None = None,
    memory: Memory | None = None,
    training: Training | None = None,
    seed: int = 0,
    resume: bool = False,
    base: str | Path | None = None,
    accelerator: Accelerator | None = None,
    tensorboard: bool = False,
    progress: bool = True,
    command: str = "",
    class_names: Sequence[str] | None = None,
    keep_phases: bool = False,
    source: Mapping[str, Any] | None = None,
    report: bool = True,
) -> Result:
    """Run a method through all phases of a scenario and return the measurements.

    Args:
        train: Continuum's `ClassIncremental` scenario of the training data.
        test: the scenario of the test data, with the same class order.
        backbone: a network, with or without a classifier, or a function that returns one.
        method: a method of `aanets_plugin.baselines`.
        output: the folder of the run; `RunFolder` lists its files.
        aanets: the options of AANets, as `AANets(…)` or an `AANetConfig`. None: plain network.
        memory: the number of exemplars. Default: `Memory()`, 20 per class.
        training: epochs, learning rate and so on. Default: `Training()`, the paper's values.
        seed: the seed of all random numbers.
        resume: continue the run in `output` from its last epoch; start one if there is none. A
            resumed run is bit-identical to one that was never stopped.
        base: the folder of a run whose first phase is used instead of training one. It must have
            the same seed, data, backbone, head and training; its later phases may differ.
        accelerator: an `accelerate.Accelerator`, for devices, precision, processes, `torch.compile`
            (`dynamo_plugin`) and trackers (`log_with`). Default: `default_accelerator()`.
        tensorboard: write curves to `output`/tensorboard as well.
        progress: show progress bars.
        command: the command line, to be shown in the summary.
        class_names: the names of the dataset's classes by label, for `load_run`.
        keep_phases: keep the checkpoint of every phase, not of the last one alone.
        source: what the data and the network were made from, to be kept in `config.json`.
        report: draw figures and write `summary.md` and `report.html` at the end.

    Example::

        train, test = scenarios(load_data("digits"), base_classes=4, phases=3)
        result = run(train, test, resnet20, LUCIR(), aanets=AANets(), output="runs/lucir")
        print(result.head[-1]["average"])
    """
    return Run(**locals()).finish()


class Run:
    """A run that can be interrupted and resumed. The arguments are those of `run`."""

    def __init__(
        self,
        train: Any,
        test: Any,
        backbone: Backbone,
        method: Method,
        *,
        output: str | Path,
        aanets: AANetConfig | None = None,
        memory: Memory | None = None,
        training: Training | None = None,
        seed: int = 0,
        resume: bool = False,
        base: str | Path | None = None,
        accelerator: Accelerator | None = None,
        tensorboard: bool = False,
        progress: bool = True,
        command: str = "",
        class_names: Sequence[str] | None = None,
        keep_phases: bool = False,
        source: Mapping[str, Any] | None = None,
        report: bool = True,
    ) -> None:
        self.phases = Phases(train, test)
        self.method, self.aanets = method, aanets
        self.training = training or Training()
        self.seed, self.command = seed, command
        self.keep_phases, self.report = keep_phases, report
        self.accelerator = accelerator or default_accelerator()
        self.is_main = self.accelerator.is_main_process
        self.trainer = Trainer(self.accelerator, self.training, seed, progress)

        seed_everything(seed)
        with self.trainer.together():  # all have read the folder before one writes to it
            self.state, memory = new_state(
                backbone, method, aanets, memory or Memory(), self.training, self.phases
            )
            net = self.state.net
            self.network = network_description(net.backbone, self.phases, class_names)
            config = run_config(
                self.state, memory, self.training, seed, self.phases, self.accelerator
            )
            self.config = config if source is None else {**config, "source": dict(source)}
            self.base_config = base_config(config, method, self.training)
            self.folder = RunFolder(output)
            self.version = self.folder.version()
            self.folder.open(config, resume=resume)
            self.has_base = self._load(None if base is None else RunFolder(base))
        share_statistics(net.backbone, self.accelerator)
        self.trackers = Trackers(self.accelerator, tensorboard=tensorboard)
        net.to(self.accelerator.device)

    def finish(self) -> Result:
        """Run the remaining phases, write the report and return the measurements."""
        with ExitStack() as held:
            with self.trainer.together():
                if self.is_main:
                    held.enter_context(self.folder.lock())
                    self._begin()
            with telling_of_failures(self.accelerator):
                return self._finish()

    def _begin(self) -> None:
        """Check that the folder is as it was, and write what a run begins with."""
        if self.folder.version() != self.version:
            raise ConfigurationError(
                f"another process has worked on the run in {self.folder.path} since this one "
                f"has read it. Start again to continue from there."
            )
        self.folder.write_config(self.config)
        self.folder.write_network(self.network)
        if self.state.rows:  # these files may have been lost or damaged
            self.folder.write_metrics(self.state.rows)
            self.folder.write_alpha(self.state.bilevel)

    def _finish(self) -> Result:
        if len(self.state.rows) < len(self.phases):
            try:
                with self.trainer.together():
                    self.trackers.start(self.folder.path, self.config)
                with keep_time(self.folder.path) if self.is_main else nullcontext():
                    self._finish_phases()
            finally:
                self.trackers.finish()
        result = self.result
        with self.trainer.together():
            if self.is_main:
                self.folder.write_about(self.method, arm=self.arm, command=self.command)
                if self.report:
                    report_run(self.folder, result, self.state, self.phases, self.command)
        return result

    def _finish_phases(self) -> None:
        done = len(self.state.rows)
        remaining = range(done, len(self.phases))
        for phase in (bar := self.trainer.bar(remaining, self.arm, "phase", done=done, leave=True)):
            self.run_phase(phase)
            row = self.state.rows[-1]
            bar.set_postfix({rule: f"{row[rule]['all']:.1f}" for rule in RULES if rule in row})

    def run_phase(self, phase: int) -> None:
        """Train a phase after the ones before it, choose exemplars, measure and save."""
        self._learn(phase)
        if not self.method.keeps_all_data:
            files = self.folder.path / "exemplars" / f"phase{phase}"
            remember(self.state, self.trainer, self.phases, phase, files)
            fine_tune(self.state, self.trainer, self.phases, phase)
        row = measure(self.state, self.trainer, self.phases, phase)
        with self.trainer.together():
            self._save(phase, row)

    @property
    def arm(self) -> str:
        """The kind of run, as it is called in reports."""
        if self.method.keeps_all_data:
            return "upper bound"
        if self.aanets is None:
            return "plain"
        return f"AANets, {'learned' if self.aanets.lr else 'fixed'} α"

    @property
    def result(self) -> Result:
        """The metrics of the phases so far; there must be one."""
        rows = self.state.rows
        by_rule: dict[str, Any] = {
            rule: [row[rule] for row in rows] for rule in RULES if rule in rows[0]
        }
        return Result(self.arm, self.seed, [row["classes"] for row in rows], **by_rule)

    # -- the steps of a phase --------------------------------------------------------------------

    def _learn(self, phase: int) -> None:
        """Train the epochs of a phase, starting after the last one that was saved."""
        net = self.state.net
        data = self.training_data(phase)
        distils = phase and not self.method.keeps_all_data
        teacher = self.trainer.frozen_copy(net) if distils else None
        if phase:
            self._grow(phase)
        if self.state.bilevel is not None:
            self.state.bilevel.begin_phase()

        lr, epochs = self.training.lr_of(phase), self.training.epochs_of(phase)
        schedule = self.training.schedule or self.method.schedule
        loss_module, optimizer = self.trainer.prepare(MethodLoss(self.method, net, teacher))
        with self.trainer.together():
            done = epochs if phase == 0 and self.has_base else self._load_epoch(phase, optimizer)
        bar = self.trainer.bar(range(done, epochs), f"phase {phase}", "epoch", done=done)
        for epoch in bar:
            rate = lr * self.training.factor(epoch, epochs, schedule)
            loss = self.trainer.train(loss_module, optimizer, rate, data, phase, epoch)
            self.update_alpha(data, phase, epoch)
            alphas = {name: level.alpha for name, level in named_levels(net).items()}
            first = {f"alpha/{n}": a[0].item() for n, a in alphas.items() if a is not None}
            with self.trainer.together():
                self._log({"loss": loss, **first}, phase, epoch)
                self._save_epoch(phase, epoch, optimizer)
        if phase == 0:
            with self.trainer.together():
                self._end_base()
        elif self.state.bilevel is not None:
            self.state.bilevel.end_phase()

    def _grow(self, phase: int) -> None:
        seed_everything(self.seed, phase)
        net, new, samples = self.state.net, self.phases.increments[phase], None
        if self.method.imprints:
            samples = self.trainer.features(net, self.phases.train_as_test(phase))
        grow_head(self.method, net, new, samples, generator(self.seed, phase))

    def training_data(self, phase: int) -> Any:
        """The samples that the network learns in a phase: new ones and exemplars, or all so far."""
        if self.method.keeps_all_data:
            return self.phases.train_so_far(phase)
        data = self.phases.train(phase)
        if phase:
            data.add_samples(*self.state.exemplars.get())
        return data

    def update_alpha(self, data: Any, phase: int, epoch: int) -> None:
        """Update α (Eq. 8) on a balanced subset of `data`, or on all of them."""
        bilevel = self.state.bilevel
        if bilevel is None or self.aanets is None:
            return
        seed_everything(self.seed, phase, epoch, 2, self.accelerator.process_index)
        per_class, is_balanced = self.aanets.per_class, self.aanets.balanced

        def balanced() -> Any:
            loader = balanced_loader(
                data,
                per_class=per_class,
                balanced=is_balanced,
                batch_size=self.training.batch_size,
                generator=generator(self.seed, phase),
                num_workers=self.training.workers,
            )
            return self.trainer.share(loader)

        with self.accelerator.autocast():
            bilevel.after_epoch(balanced)

    def _end_base(self) -> None:
        """Save the network of the first phase for other runs, and make it the stable branch."""
        if self.is_main and not self.has_base:
            checkpoint.save(self.folder.base, {"config": self.base_config, **self.state.weights()})
        self.state.end_base()

    def _log(self, values: dict[str, float], phase: int, epoch: int) -> None:
        before = sum(self.training.epochs_of(earlier) for earlier in range(phase))
        self.trackers.log(values, before + epoch)

    # -- state -----------------------------------------------------------------------------------

    def _load(self, base: RunFolder | None) -> bool:
        """Load the end of the last phase, or else the first phase of `base`; True in that case."""
        saved = checkpoint.load(self.folder.phase, checkpoint.PHASE)
        if saved is not None:
            with checkpoint.using(self.folder.phase):
                self.state.load_state_dict(saved, self.phases.increments)
        elif base is not None:
            load_base(base, self.base_config, self.state.net)
            return True
        return False

    def _save(self, phase: int, row: dict[str, Any]) -> None:
        """Save the end of a phase. The checkpoint comes last, after the files that it refers to."""
        self.state.rows.append(row)
        accuracies = {f"accuracy/{rule}": row[rule]["all"] for rule in RULES if rule in row}
        self._log(accuracies, phase, self.training.epochs_of(phase) - 1)
        if self.is_main:
            self.folder.write_metrics(self.state.rows)
            self.folder.write_alpha(self.state.bilevel)
            if self.keep_phases:
                checkpoint.save(self.folder.kept(phase), self.state.state_dict())
            checkpoint.save(self.folder.phase, self.state.state_dict())

    def _save_epoch(self, phase: int, epoch: int, optimizer: Any) -> None:
        if self.is_main:
            state = {"phase": phase, "epoch": epoch, "optimizer": optimizer.state_dict()}
            if self.accelerator.scaler is not None:
                state["scaler"] = self.accelerator.scaler.state_dict()
            checkpoint.save(self.folder.epoch, {**state, **self.state.weights()})
            epochs = self.training.epochs_of(phase)
            self.folder.write_status(phase=phase, epoch=epoch + 1, epochs=epochs)

    def _load_epoch(self, phase: int, optimizer: Any) -> int:
        """Load the last saved epoch of this phase; returns the number of epochs done."""
        state = checkpoint.load(self.folder.epoch, checkpoint.EPOCH)
        if state is None or state["phase"] != phase:
            return 0
        with checkpoint.using(self.folder.epoch):
            self.state.load_weights(state)
            optimizer.load_state_dict(state["optimizer"])
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
            check_momentum(optimizer)
        return int(state["epoch"]) + 1
