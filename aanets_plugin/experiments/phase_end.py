"""The end of a phase: choose exemplars, fine-tune on them, measure the accuracy."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast
from torch.utils.data import DataLoader

from aanets_plugin.adapters.continuum.memory import pixel_bounds, put_images, with_samples
from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines.lifecycle import fine_tuning
from aanets_plugin.baselines.metrics import PhaseMetrics, phase_metrics
from aanets_plugin.baselines.prediction import class_means, nearest_mean
from aanets_plugin.experiments.randomness import generator, seed_everything
from aanets_plugin.experiments.run_state import RunState
from aanets_plugin.experiments.trainer import Trainer


def remember(state: RunState, trainer: Trainer, phases: Phases, phase: int, files: Path) -> None:
    """Herd exemplars of the new classes, and learn their pixels if the method does so.

    Learned exemplars of datasets of image files are written to `files`.
    """
    data = phases.train_as_test(phase)
    features, _, _ = trainer.features(state.net, data)
    memory, method = state.exemplars, state.method
    memory.add(*data.get_raw_samples(), features)
    if not method.learns_exemplars:
        return
    rows = np.flatnonzero(memory._y >= phases.seen(phase - 1))
    chosen = with_samples(data, tuple(part[rows] for part in memory.get()))
    images, labels = (torch.stack([torch.as_tensor(s[i]) for s in chosen]) for i in (0, 1))
    seed_everything(trainer.seed, phase, 3)
    draw = generator(trainer.seed, phase, 3)
    size, device = trainer.training.batch_size, trainer.accelerator.device
    validation = DataLoader(data, batch_size=size, shuffle=True, generator=draw)
    mean, std = pixel_bounds(phases.test_transforms)
    bounds = -mean / std, (1 - mean) / std
    with trainer.together():
        refined = method.refine(state.net, images, labels, validation, bounds, draw)
    shared = broadcast(refined.to(device)).cpu()
    with trainer.together():
        put_images(memory, rows, shared, phases.test_transforms, files)


def fine_tune(state: RunState, trainer: Trainer, phases: Phases, phase: int) -> None:
    """Fine-tune on the exemplars if the method does so; never in the first phase."""
    if state.method.fine_tuning is None or phase == 0:
        return
    data = with_samples(phases.train(phase), state.exemplars.get())
    with fine_tuning(state.method, state.net) as (loss_module, rates):
        loss_module, optimizer = trainer.prepare(loss_module)
        for epoch, lr in enumerate(trainer.bar(rates, "fine-tuning", "epoch")):
            trainer.train(loss_module, optimizer, lr, data, phase, 4, epoch)


def measure(state: RunState, trainer: Trainer, phases: Phases, phase: int) -> dict[str, Any]:
    """Measure the accuracy on all classes seen, by the head and by the nearest mean.

    The means become part of the state.
    """
    net, memory = state.net, state.exemplars
    features, labels, _ = trainer.features(net, phases.test_so_far(phase))
    with torch.no_grad():
        logits = net.fc(features.to(trainer.accelerator.device))
    predictions = {"head": logits.argmax(1).cpu()}
    if len(memory):
        exemplars = with_samples(phases.test_so_far(0), memory.get())
        means = class_means(*trainer.features(net, exemplars, flip=phases.flips))
        predictions["nearest_mean"] = nearest_mean(features, *means)
        state.means = means
    row: dict[str, Any] = {"phase": phase, "classes": phases.seen(phase)}
    for rule, predicted in predictions.items():
        earlier = [PhaseMetrics(**earlier_row[rule]) for earlier_row in state.rows]
        metrics = phase_metrics(predicted, labels, phases.increments[: phase + 1], earlier)
        row[rule] = dataclasses.asdict(metrics)
    return row
