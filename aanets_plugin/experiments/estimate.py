"""How much work the phases of a run are, and how long a batch takes on this machine."""

from __future__ import annotations

import time

import numpy as np
import torch

from aanets_plugin.baselines.lifecycle import (
    MethodLoss,
    build_network,
    grow_head,
    sgd,
    teacher_of,
    train_epoch,
)
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.experiments.plan import Plan

FORWARD = 1 / 3
"""The part of a training step that its forward pass takes."""


def work_of(plan: Plan, sample: float | None = None) -> list[float]:
    """The work of each phase: training, α, features for herding and for the measurement.

    `sample` is the work of training on one sample of an incremental phase. Default: that of the
    plain network is 1, that of AANets the number of branches.
    """
    own, training, method = plan.settings, plan.settings.training, plan.settings.method
    data = plan.source.load()
    branches = 1 if own.aanets is None else len(own.aanets.blocks)
    sample = float(branches) if sample is None else sample
    images, tests = (len(d.get_data()[1]) / data.classes for d in (data.train, data.test))
    work = []
    seen = 0
    for phase, new in enumerate(plan.increments):
        kept = 0 if phase == 0 else seen * own.memory.exemplars_per_class(seen)
        if method.keeps_all_data:
            kept = round(seen * images)
        seen += new
        stored = own.memory.exemplars_per_class(seen)
        epochs = training.epochs_of(phase)
        samples = epochs * (new * images + kept)
        if phase and own.aanets is not None and own.aanets.lr:
            samples += epochs * (kept + new * min(stored, images))
        if phase and method.fine_tuning is not None:
            samples += FORWARD * method.fine_tuning.epochs * stored * seen
        samples += FORWARD * (new * images + seen * (tests + stored))
        work.append(samples * (sample / branches if phase == 0 else sample))
    return work


def seconds_per_sample(plan: Plan) -> float:
    """The time of one training step of an incremental phase, measured, by sample."""
    own, data = plan.settings, plan.source.load()
    first, new = plan.increments[0], plan.increments[-1]
    net = build_network(own.backbone, own.method, first, data.input_shape)
    teacher = None if own.method.keeps_all_data else teacher_of(net)
    if own.aanets is not None:
        convert_to_aanet(net.backbone, **own.aanets.conversion)
    grow_head(own.method, net, new)
    device = "cuda" if plan.device == "auto" and torch.cuda.is_available() else "cpu"
    size = own.training.batch_size
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.normal(size=(size, *data.input_shape)).astype(np.float32))
    y = torch.arange(size) % (first + new)
    loss = MethodLoss(own.method, net, teacher).to(device)
    for module in (net, teacher):
        if module is not None:
            module.to(device)
    optimizer = sgd(loss, own.training.momentum, own.training.weight_decay)
    for _ in range(2):  # the first one pays for what happens once
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=plan.precision == "bf16"):
            losses = train_epoch(loss, optimizer, 1e-6, [(x.to(device), y.to(device))])
        losses[0].item()
        seconds = time.perf_counter() - start
    return seconds / size
