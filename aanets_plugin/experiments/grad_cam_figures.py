"""The paper's Figure 5 and its supplement, from the folder of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from aanets_plugin.activation_maps import grad_cam, plot_grad_cam
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.predictor import load_run
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.plot_style import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Examples:
    """A few test images, one for each of some phases."""

    inputs: Tensor
    """As the network takes them, [images, channels, height, width]."""
    pixels: Tensor
    """The same without normalization, with values from 0 to 1."""
    labels: list[int]
    """Their classes, as columns of the logits."""
    phases: list[int]
    """The phases in which the classes came."""

    def save(self, folder: Path) -> None:
        """Write `examples.npz`."""
        np.savez(
            folder / "examples.npz",
            inputs=self.inputs.numpy(),
            pixels=self.pixels.numpy(),
            labels=np.array(self.labels),
            phases=np.array(self.phases),
        )

    @classmethod
    def load(cls, folder: Path) -> Examples:
        """Read `examples.npz` of a finished run with AANets."""
        file = folder / "examples.npz"
        if not file.exists():
            raise ConfigurationError(
                f"{file} does not exist. Pass the folder of a finished run with AANets, such as "
                f"runs/lucir/learned-0."
            )
        with np.load(file, allow_pickle=False) as arrays:
            return cls(
                torch.from_numpy(arrays["inputs"]),
                torch.from_numpy(arrays["pixels"]),
                arrays["labels"].tolist(),
                arrays["phases"].tolist(),
            )


def draw_run(folder: Path, level: int | str = -1) -> list[Path]:
    """Draw `figure5` and, if the run kept its phases, `figure5-phases`; returns the files."""
    examples = Examples.load(folder)
    net = load_run(folder).net
    figures = {"figure5": plot_last_phase(folder, net, examples, level)}
    last = len(RunFolder(folder).rows()) - 1
    if all(RunFolder(folder).kept(phase).exists() for phase in range(last)):
        figures["figure5-phases"] = plot_all_phases(folder, examples, last, level)
    files = []
    for name, figure in figures.items():
        save(figure, folder / f"{name}.png", ".pdf")
        files += [folder / f"{name}.png", folder / f"{name}.pdf"]
    return files


def plot_last_phase(
    folder: Path, net: IncrementalNet, examples: Examples, level: int | str = -1
) -> Figure:
    """Draw the maps of each branch of the final network, one row per image (Figure 5)."""
    device = next(net.parameters()).device
    maps = grad_cam(net, examples.inputs.to(device), examples.labels, level=level)
    return plot_grad_cam(examples.pixels, maps, titles=_titles(folder, examples))


def plot_all_phases(folder: Path, examples: Examples, last: int, level: int | str = -1) -> Figure:
    """Draw the maps of the first image in the networks of all phases (the supplement's figure).

    The rows are the branches. In phase 0 there is one branch, the later θ_base.
    """
    image, label = examples.inputs[:1], examples.labels[:1]
    nets = [load_run(folder, phase).net for phase in range(last + 1)]
    first, *later = (grad_cam(net, image, label, level=level) for net in nets)
    rows = list(later[-1])
    columns = {
        f"phase {phase}": torch.cat([maps.get(row, maps["aggregated"]) for row in rows])
        for phase, maps in enumerate([first, *later])
    }
    return plot_grad_cam(examples.pixels[:1].expand(len(rows), -1, -1, -1), columns, titles=rows)


def _titles(folder: Path, examples: Examples) -> list[str]:
    file = folder / "network.json"
    names = json.loads(file.read_text(encoding="utf-8"))["class_names"] if file.exists() else None
    return [
        f"{names[label] if names else label} (phase {phase})"
        for label, phase in zip(examples.labels, examples.phases, strict=True)
    ]
