"""inspect_run: what a finished run leaves for its report beside the measurements.

It writes `cost.json`, and with AANets `branches.json`, `examples.npz` (a few test images as the
network takes them) and `grad_cam.png`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset

from aanets_plugin.adapters.continuum.memory import pixel_bounds
from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.budget import profile
from aanets_plugin.experiments.grad_cam_figures import Examples, plot_last_phase
from aanets_plugin.files import write_text
from aanets_plugin.inspection import branch_report
from aanets_plugin.levels import levels
from aanets_plugin.plot_style import save

MAX_SAMPLES = 2000
"""Test samples for the report of the branches, equally many of each class."""
CANDIDATES = 20
"""Test images of a class among which the example is chosen."""


def inspect_run(folder: Path, net: IncrementalNet, phases: Phases, exemplars: int) -> None:
    """Measure the cost of the network and, with AANets, what its branches do."""
    if any(len(level.branches) > 1 for level in levels(net)):
        _inspect_branches(folder, net, phases)
    cost = profile(net, phases.input_shape, exemplars=exemplars)
    text = json.dumps({**dataclasses.asdict(cost), "memory": cost.memory})
    write_text(folder / "cost.json", text + "\n")


def _inspect_branches(folder: Path, net: IncrementalNet, phases: Phases) -> None:
    test = phases.test_so_far(len(phases) - 1)
    labels = np.asarray(test._y)
    ends = list(accumulate(phases.increments))
    classes = [range(end - new, end) for end, new in zip(ends, phases.increments, strict=True)]
    chosen = _first_of_each(labels, range(ends[-1]), max(1, MAX_SAMPLES // ends[-1]))
    report = branch_report(net, DataLoader(Subset(test, chosen), batch_size=100), phases=classes)
    text = json.dumps({"samples": len(chosen), **dataclasses.asdict(report)}, indent=2)
    write_text(folder / "branches.json", text + "\n")
    shown = sorted({0, len(phases) // 2, len(phases) - 1})
    examples = _examples(net, phases, test, labels, {p: classes[p][0] for p in shown})
    examples.save(folder)
    save(plot_last_phase(folder, net, examples), folder / "grad_cam.png")


def _examples(
    net: IncrementalNet, phases: Phases, test: Any, labels: np.ndarray, wanted: dict[int, int]
) -> Examples:
    """For each phase, the image of a class that the network is most certain of."""
    net.eval()
    device, images = next(net.parameters()).device, []
    for label in wanted.values():
        places = _first_of_each(labels, [label], CANDIDATES)
        candidates = torch.stack([torch.as_tensor(test[place][0]) for place in places])
        with torch.no_grad():
            certainty = net(candidates.to(device)).softmax(1)[:, label]
        images.append(candidates[int(certainty.argmax())])
    mean, std = pixel_bounds(phases.test_transforms)
    inputs = torch.stack(images)
    return Examples(inputs, (inputs * std + mean).clamp(0, 1), list(wanted.values()), list(wanted))


def _first_of_each(labels: np.ndarray, classes: Iterable[int], count: int) -> list[int]:
    return [int(i) for label in classes for i in np.flatnonzero(labels == label)[:count]]
