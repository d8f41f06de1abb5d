"""How the default step of α was chosen: learning rates side by side, against the best α there is.

python benchmarks/alpha.py --data PATH   (a folder with train.npz and test.npz, each with x and y)

ResNet-20 on CIFAR-100: 50 classes first, then two phases of 10, 10 exemplars per class, replay
with distillation. The base phase is trained once; every arm starts from it. After the last phase
the balanced loss is scanned over α, level by level, on the data α learned from and on as many test
images per class, which neither the network nor α has seen. Writes curves and a table to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from aanets_plugin import (
    AlphaRecord,
    BilevelStrategy,
    convert_to_aanet,
    herd_classes,
    levels,
    parameter_groups,
)
from aanets_plugin.baselines import resnet20

BASE, STEP, PHASES = 50, 10, 2
ARMS: dict[str, dict[str, Any]] = {
    "fixed 0.5": {"lr": 0.0},
    "normalized 0.01": {"lr": 0.01},
    "normalized 0.03": {"lr": 0.03},
    "normalized 0.1": {"lr": 0.1},
    "normalized 0.3": {"lr": 0.3},
    "Eq. 8, 2.0": {"lr": 2.0, "normalize": False},
    "official 1e-8": {},
}
GRID = [i / 5 for i in range(6)]


@dataclass
class Settings:
    data: Path
    base_images: int
    images: int
    base_epochs: int
    epochs: int
    exemplars: int
    seed: int
    output: Path


def load(settings: Settings, part: str, images: int) -> tuple[Tensor, Tensor]:
    """The first `images` of each class, normalised, labels in the order that the seed draws."""
    with np.load(settings.data / f"{part}.npz") as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"]).long()
    order = torch.from_numpy(np.random.RandomState(settings.seed + 1993).permutation(100))
    keep = torch.cat([(y == c).nonzero()[:images, 0] for c in range(100)])
    mean, std = torch.tensor([0.5071, 0.4866, 0.4409]), torch.tensor([0.2009, 0.1984, 0.2023])
    return ((x[keep] / 255 - mean) / std).permute(0, 3, 1, 2).contiguous(), order.argsort()[y[keep]]


def augment(x: Tensor) -> Tensor:
    """A random flip and a random crop after padding by 4, drawn for each image."""
    n, _, height, width = x.shape
    flip = torch.rand(n, 1, 1, 1) < 0.5
    padded = F.pad(torch.where(flip, x.flip(3), x), (4, 4, 4, 4))
    rows = torch.randint(9, (n, 1)) + torch.arange(height)
    columns = torch.randint(9, (n, 1)) + torch.arange(width)
    return padded.permute(0, 2, 3, 1)[
        torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
    ].permute(0, 3, 1, 2)


def train_epoch(
    model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, seen: int, teacher: nn.Module | None
) -> None:
    model.train()
    for index in torch.randperm(len(y)).split(128):
        inputs = augment(x[index]).contiguous()
        logits = model(inputs)[:, :seen]
        loss = F.cross_entropy(logits, y[index])
        if teacher is not None:
            old = seen - STEP
            with torch.no_grad():
                soft = (teacher(inputs)[:, :old] / 2).softmax(1)
            loss = loss + F.cross_entropy(logits[:, :old] / 2, soft) * 4 * old / seen
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epochs: int,
    seen: int,
    teacher: nn.Module | None = None,
    after_epoch: Any = None,
) -> None:
    optimizer = torch.optim.SGD(parameter_groups(model, 0.1, 5e-4), momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in tqdm(range(epochs), desc=f"{seen} classes", disable=after_epoch is not None):
        train_epoch(model, optimizer, x, y, seen, teacher)
        schedule.step()
        if after_epoch is not None:
            after_epoch()


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor, seen: int) -> tuple[float, float]:
    """Loss and accuracy (%) over the classes seen."""
    model.eval()
    logits = torch.cat([model(part)[:, :seen] for part in x.split(256)])
    return F.cross_entropy(logits, y).item(), 100 * (logits.argmax(1) == y).float().mean().item()


@torch.no_grad()
def scan(model: nn.Module, x: Tensor, y: Tensor, seen: int) -> list[list[float]]:
    """Per level: the loss over a grid of plastic weights, the other levels as they are."""
    result = []
    for level in levels(model):
        assert level.alpha is not None
        kept, losses = level.alpha.clone(), []
        for weight in GRID:
            level.alpha.copy_(torch.tensor([weight, 1 - weight]))
            losses.append(evaluate(model, x, y, seen)[0])
        level.alpha.copy_(kept)
        result.append(losses)
    return result


def features(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        return torch.cat([model.features(part) for part in x.split(256)])  # type: ignore[operator]


def of_classes(x: Tensor, y: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    chosen = (y >= low) & (y < high)
    return x[chosen], y[chosen]


def run_arm(arm: str, settings: Settings, base: dict[str, Tensor]) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    started = time.perf_counter()
    x, y = load(settings, "train", settings.images)
    test_x, test_y = load(settings, "test", settings.exemplars)
    model = resnet20(100)
    model.load_state_dict(base)
    convert_to_aanet(model)

    def loss_fn(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(net(batch[0])[:, :seen], batch[1])

    make = BilevelStrategy.official if arm.startswith("official") else BilevelStrategy
    bilevel = make(model, base_phase=False, loss_fn=loss_fn, **ARMS[arm])
    memory_x, memory_y = exemplars(model, *of_classes(x, y, 0, BASE), settings.exemplars)
    phases = []
    for phase in range(PHASES):
        seen = BASE + (phase + 1) * STEP
        new = of_classes(x, y, seen - STEP, seen)
        teacher = copy.deepcopy(model).eval().requires_grad_(False)
        # the first images of each new class stand for its exemplars, as many as each old class has
        first = torch.cat(
            [(new[1] == c).nonzero()[: settings.exemplars, 0] for c in range(seen - STEP, seen)]
        )
        balanced = torch.cat([memory_x, new[0][first]]), torch.cat([memory_y, new[1][first]])
        batches = list(zip(balanced[0].split(128), balanced[1].split(128), strict=True))
        bilevel.begin_phase()
        together = torch.cat([new[0], memory_x]), torch.cat([new[1], memory_y])
        update = lambda: bilevel.after_epoch(batches)  # noqa: E731, B023
        fit(model, *together, settings.epochs, seen, teacher, update)
        held_out = of_classes(test_x, test_y, 0, seen)
        measured: dict[str, Any] = {"alpha": [level.alpha.tolist() for level in levels(model)]}
        for name, data in (("balanced", balanced), ("held out", held_out)):
            measured[name] = evaluate(model, *data, seen)
            if phase == PHASES - 1:
                measured[f"{name} scan"] = scan(model, *data, seen)
        phases.append(measured)
        bilevel.end_phase()
        more_x, more_y = exemplars(model, *new, settings.exemplars)
        memory_x, memory_y = torch.cat([memory_x, more_x]), torch.cat([memory_y, more_y])
    history = [[r.phase, r.epoch, r.level, *r.weights] for r in bilevel.history]
    seconds = round(time.perf_counter() - started)
    return {"arm": arm, "phases": phases, "history": history, "seconds": seconds}


def exemplars(model: nn.Module, x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    chosen = torch.cat(list(herd_classes(features(model, x), y, count).values()))
    return x[chosen], y[chosen]


def trained_base(settings: Settings) -> dict[str, Tensor]:
    torch.manual_seed(settings.seed)
    x, y = of_classes(*load(settings, "train", settings.base_images), 0, BASE)
    model = resnet20(100)
    fit(model, x, y, settings.base_epochs, BASE)
    return model.state_dict()


def report(results: list[dict[str, Any]]) -> str:
    lines = [
        "| arm | plastic α, phase 1 | phase 2 | best by scan, balanced | best by scan, held out | "
        "balanced loss: at α, best | held-out loss: at α, best | held-out accuracy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        *_, last = result["phases"]
        cells = [result["arm"]]
        cells += [_row(alpha[0] for alpha in phase["alpha"]) for phase in result["phases"]]
        for where in ("balanced scan", "held out scan"):
            cells.append(_row(GRID[int(np.argmin(losses))] for losses in last[where]))
        for where in ("balanced", "held out"):
            best = min(min(losses) for losses in last[f"{where} scan"])
            cells.append(f"{last[where][0]:.3f}, {best:.3f}")
        cells.append(f"{last['held out'][1]:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _row(values: Any) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for result in results:
        records = [AlphaRecord(p, e, n, tuple(w), None) for p, e, n, *w in result["history"]]
        for axes, name in zip(panels, ("layer1", "layer2", "layer3"), strict=True):
            values = [r.weights[0] for r in records if r.level == name]
            axes.plot(range(1, len(values) + 1), values, label=result["arm"])
            axes.set(title=name, xlabel="update")
    panels[0].set_ylabel("plastic weight")
    panels[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with train.npz, test.npz")
    parser.add_argument("--base-images", type=int, default=150, help="per class of the base phase")
    parser.add_argument("--images", type=int, default=60, help="per class of the later phases")
    parser.add_argument("--base-epochs", type=int, default=14)
    parser.add_argument("--epochs", type=int, default=8, help="per incremental phase")
    parser.add_argument("--exemplars", type=int, default=10, help="per class")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    args = vars(parser.parse_args())
    processes, arms = args.pop("processes"), args.pop("arms")
    settings = Settings(**args)
    if not (settings.data / "train.npz").exists():
        parser.error(f"--data: {settings.data} has no train.npz")
    settings.output.mkdir(parents=True, exist_ok=True)
    base = trained_base(settings)
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        jobs = [pool.apply_async(run_arm, (arm, settings, base)) for arm in arms]
        results = [job.get() for job in tqdm(jobs, desc="arms")]
    (settings.output / "alpha.json").write_text(json.dumps(results), encoding="utf-8")
    draw(results, settings.output / "alpha_steps.png")
    table = report(results)
    (settings.output / "alpha_table.md").write_text(table + "\n", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
