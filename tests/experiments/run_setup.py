"""Small runs for the tests: ten digits in three phases, a network with three blocks."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import gc
import json
from pathlib import Path

import numpy as np
import torch
from continuum.datasets import InMemoryDataset

from aanets_plugin.baselines import LUCIR, CifarResNet, ICaRL, Joint, Mnemonics, PODNet
from aanets_plugin.experiments import AANets, Memory, Training, load_data, run, scenarios

# Accelerate collects garbage before each phase, and there is much that is none in a test process.
gc.freeze()
atexit.register(gc.unfreeze)

INCREMENTS = [6, 2, 2]
TRAINING = Training(epochs=1, batch_size=32, lr=0.05)
EXEMPLARS = 5

# Steps this long are seen in 8 bits.
MNEMONICS = Mnemonics(refine_steps=2, refine_lr=0.05, inner_lr=1.0, finetune_epochs=1)
METHODS = {
    "icarl": ICaRL(),
    "lucir": LUCIR(),
    "podnet": PODNet(proxies=2, finetune_epochs=1),
    "mnemonics": MNEMONICS,
    "joint": Joint(),
}
ARMS = {"plain": None, "aanets": AANets()}


def network():
    return CifarResNet(1, 10)


def first_of_each(dataset, counts):
    """The first `counts[label]` samples of each class of a Continuum dataset, as a dataset."""
    x, y, _ = dataset.get_data()
    kept = [np.flatnonzero(y == label)[:count] for label, count in enumerate(counts)]
    kept = np.sort(np.concatenate(kept))
    return InMemoryDataset(x[kept], y[kept], data_type=dataset.data_type, train=dataset.train)


@functools.cache
def digits(per_class=20, seed=0):
    """The digits with few training and test images."""
    data = load_data("digits", per_class=per_class, seed=seed)
    return dataclasses.replace(data, test=first_of_each(data.test, [10] * 10))


def small_run(output, method=None, *, data=None, backbone=network, split=None, **options):
    """A run that takes a few seconds; `split` are options of `scenarios`."""
    train, test = scenarios(data or digits(), **(split or {"base_classes": 6, "phases": 2}))
    options = {"memory": Memory(per_class=EXEMPLARS), "training": TRAINING, **options}
    options.setdefault("report", False)  # it takes longer than the run
    return run(train, test, backbone, method or LUCIR(), output=output, progress=False, **options)


def rows_of(folder):
    """The contents of metrics.jsonl, a dict per phase."""
    lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def saved(folder, name="phase"):
    """A checkpoint of the run."""
    return torch.load(Path(folder) / "checkpoint" / f"{name}.pt", weights_only=True)


def exemplar_counts(folder):
    """The number of exemplars of each class at the end of the run."""
    _, counts = np.unique(saved(folder)["exemplars"]["y"], return_counts=True)
    return counts.tolist()


def watched_network(seen, make=network):
    """A function that makes a network, which adds all its inputs to `seen` as (why, images).

    Why is "train", "alpha" (in eval mode with a gradient) or "look".
    """

    def watch(module, args):
        looks = "alpha" if torch.is_grad_enabled() else "look"
        seen.append(("train" if module.training else looks, args[0].detach().clone()))

    def watched():
        net = make()
        net.register_forward_pre_hook(watch)
        return net

    return watched


def unaugmented(data):
    """The same data without augmentation."""
    return dataclasses.replace(data, train_transforms=data.test_transforms)


def labels_of(images, train):
    """The labels of these images in a scenario of unaugmented data."""
    known = {}
    for taskset in train:
        known.update({x.numpy().tobytes(): int(y) for x, y, _ in taskset})
    return [known[image.contiguous().numpy().tobytes()] for image in images]
