"""Whether α's default step is safe: LUCIR with steps an order of magnitude around it.

python benchmarks/alpha_range.py --data FOLDER

The setting, its options and the first phases are those of accuracy.py; runs that it has finished
are not repeated. For each step and seed: how α moved, and whether it ended near the best there is.
For that, after the last phase, the weight of one level at a time is varied over a grid, and the
loss measured on all exemplars (α learned from those of old classes, and from other samples of the
newest ones) and on as many test images, which nothing has seen. Writes alpha_range.md and
alpha_range.png to --output.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accuracy import Setting, command_of, describe, options, prepare
from allocator import keep_memory
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from aanets_plugin import AlphaRecord, balanced_indices, levels
from aanets_plugin.adapters.continuum.memory import with_samples
from aanets_plugin.config import DEFAULTS
from aanets_plugin.experiments.runner import Run
from aanets_plugin.experiments.settings import AANets

DEFAULT = DEFAULTS.lr
STEPS = (0.1, 0.01, DEFAULT, 0.0)
GRID = tuple(i / 5 for i in range(6))


@dataclass(frozen=True)
class Found:
    """What one run says of a step."""

    lr: float
    seed: int
    history: list[AlphaRecord]
    average: float
    losses: dict[str, tuple[float, float]]
    """At the learned α, and the best that a change of one level's weight gives."""
    best: dict[str, list[float]]
    """By level, the plastic weight with the smallest loss."""

    def of_level(self, name: str) -> list[float]:
        """The plastic weight, from its start through all updates."""
        return [0.5, *(r.weights[0] for r in self.history if r.level == name)]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(record.level for record in self.history))


def look(setting: Setting, lr: float, seed: int) -> Found:
    """Finish a run and scan its α."""
    arm = {0.0: "fixed", DEFAULT: "learned"}.get(lr, f"step{lr:g}")
    run = prepare(setting, "lucir", f"lucir-{arm}-{seed}", AANets(alpha_lr=lr), seed)
    result = run.finish()
    assert run.state.bilevel is not None
    losses, best = {}, {}
    for name, (features, labels) in both_halves(run).items():
        at_alpha = loss_of(run, features, labels)
        scanned = scan(run, features, labels)
        best[name] = [GRID[row.index(min(row))] for row in scanned]
        losses[name] = at_alpha, min(at_alpha, *map(min, scanned))
    history = run.state.bilevel.history
    return Found(lr, seed, history, result.head[-1]["average"], losses, best)


def both_halves(run: Run) -> dict[str, tuple[Tensor, Tensor]]:
    """Images and labels: all exemplars, and as many test images of each class."""
    test = run.phases.test_so_far(len(run.phases) - 1)
    memory = with_samples(test, run.state.exemplars.get())
    count = len(memory) // run.phases.classes
    draw = torch.Generator().manual_seed(run.seed)
    chosen = balanced_indices(torch.as_tensor(test._y), count, draw).tolist()
    halves = {
        "balanced": [memory[i] for i in range(len(memory))],
        "held out": [test[i] for i in chosen],
    }
    return {
        name: (torch.stack([s[0] for s in samples]), torch.tensor([int(s[1]) for s in samples]))
        for name, samples in halves.items()
    }


@torch.no_grad()
def loss_of(run: Run, x: Tensor, y: Tensor) -> float:
    net: nn.Module = run.state.net.eval()
    with run.accelerator.autocast():
        logits = torch.cat([net(part) for part in x.split(250)])
    return F.cross_entropy(logits, y).item()


@torch.no_grad()
def scan(run: Run, x: Tensor, y: Tensor) -> list[list[float]]:
    """By level: the loss over the grid of plastic weights, the other levels as they are."""
    rows = []
    for level in levels(run.state.net):
        assert level.alpha is not None
        kept, row = level.alpha.clone(), []
        for weight in GRID:
            level.alpha.copy_(torch.tensor([weight, 1 - weight]))
            row.append(loss_of(run, x, y))
        level.alpha.copy_(kept)
        rows.append(row)
    return rows


def table(found: list[Found]) -> str:
    header = [
        "step",
        "seed",
        "plastic α at the end",
        "smallest and largest",
        "largest move in a phase",
        "best by scan, balanced",
        "held out",
        "balanced loss: at α, best",
        "held-out loss: at α, best",
        "average accuracy",
    ]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for one in found:
        courses = [one.of_level(name) for name in one.names]
        values = [value for course in courses for value in course]
        cells = [
            f"{one.lr:g}" + (" (default)" if one.lr == DEFAULT else ""),
            str(one.seed),
            row(course[-1] for course in courses),
            row((min(values), max(values))),
            f"{max(moves(one)):.2f}",
            *(row(one.best[half]) for half in ("balanced", "held out")),
            *(f"{at:.3f}, {best:.3f}" for at, best in one.losses.values()),
            f"{one.average:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def moves(found: Found) -> list[float]:
    """How far each level's weight is at the end of a phase from where it was at the start."""
    result = []
    for name in found.names:
        records = [record for record in found.history if record.level == name]
        ends = [0.5, *({record.phase: record.weights[0] for record in records}.values())]
        result += [abs(b - a) for a, b in itertools.pairwise(ends)]
    return result


def row(values: Any) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def draw(found: list[Found], path: Path) -> None:
    names = found[0].names
    figure = Figure(figsize=(3.4 * len(names), 3.2), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True)
    steps = list(dict.fromkeys(one.lr for one in found))
    for one in found:
        for name, axes in zip(names, panels, strict=True):
            color = f"C{steps.index(one.lr)}"
            first = one.seed == found[0].seed
            axes.plot(one.of_level(name), color=color, linestyle="-" if first else ":")
            axes.set(title=name, xlabel="update", ylim=(-0.03, 1.03))
    panels[0].set_ylabel("plastic weight")
    lines = panels[0].get_lines()[:: len(found) // len(steps)]
    figure.legend(
        lines,
        [f"step {lr:g}" for lr in steps],
        loc="outside lower center",
        ncols=len(steps),
        frameon=False,
    )
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--steps", type=float, nargs="+", default=STEPS, help="0 keeps α fixed")
    args = vars(parser.parse_args())
    command = command_of("alpha_range.py", parser, args)
    output, processes, seeds = (args.pop(name) for name in ("output", "processes", "seeds"))
    steps = args.pop("steps")
    setting = Setting(**args)
    output.mkdir(parents=True, exist_ok=True)
    keep_memory()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(look, setting, lr, seed) for lr in steps for seed in seeds]
        found = [future.result() for future in tqdm(running, desc="runs")]
    found.sort(key=lambda one: (one.lr, one.seed))
    draw([one for one in found if one.lr], output / "alpha_range.png")
    text = "\n\n".join(
        [
            "# α's step, an order of magnitude around the default",
            f"`{command}`",
            f"LUCIR. {describe(setting)}",
            table(found),
            "![Plastic weight by update; dotted: further seeds](alpha_range.png)",
        ]
    )
    (output / "alpha_range.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
