"""A hand-written class-incremental loop without and with AANets, which add three lines.

python examples/own_loop.py --seeds 0 1 2

The loop replays exemplars chosen by herding, on scikit-learn's 8x8 digits: 4 classes first, then 2
at a time. The lines that AANets add are marked with (1), (2) and (3). Accuracy is measured by the
linear head, which is biased to classes with more samples, and by the nearest mean of exemplars.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset
from tqdm import tqdm

from aanets_plugin import (
    BilevelStrategy,
    balanced_subset,
    convert_to_aanet,
    herd_classes,
    parameter_groups,
    plot_alpha,
)
from aanets_plugin.baselines import CifarResNet, class_means, nearest_mean, resnet20
from aanets_plugin.config import DEFAULTS

PHASES = [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9]]
ARMS = {"plain": None, "AANets, fixed α": 0.0, "AANets, learned α": DEFAULTS.lr}


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Half of the digits for training, half for testing, with the classes in random order."""
    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(10, generator=generator)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    y = order[torch.tensor(labels)]
    shuffled = torch.randperm(len(y), generator=generator)
    halves = shuffled[: len(y) // 2], shuffled[len(y) // 2 :]
    return TensorDataset(x[halves[0]], y[halves[0]]), TensorDataset(x[halves[1]], y[halves[1]])


def of_classes(data: TensorDataset, classes: list[int]) -> Subset:
    return Subset(data, torch.isin(data.tensors[1], torch.tensor(classes)).nonzero()[:, 0].tolist())


@torch.no_grad()
def outputs(model: CifarResNet, data: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """Features, predictions of the head, and labels of all samples."""
    model.eval()
    x, y = next(iter(DataLoader(data, batch_size=len(data))))
    features = model.features(x)
    return features, model.fc(features).argmax(1), y


def accuracies(model: CifarResNet, memory: Dataset, test: Dataset) -> dict[str, float]:
    """Accuracy in per cent, by the head and by the nearest mean of the exemplars."""
    means = class_means(*outputs(model, memory)[::2])
    features, by_head, labels = outputs(model, test)
    predictions = {"head": by_head, "nearest mean": nearest_mean(features, *means)}
    return {rule: 100 * (p == labels).float().mean().item() for rule, p in predictions.items()}


def run(arm: str, args: argparse.Namespace, seed: int, progress: tqdm) -> tuple[list[dict], list]:
    """Train all phases. Returns the accuracies on all classes seen after each phase, and α."""
    torch.manual_seed(seed)
    train, test = digits(seed)
    model = resnet20(num_classes=10, in_channels=1)
    lr_alpha = ARMS[arm]
    bilevel = None
    if lr_alpha is not None:
        bilevel = BilevelStrategy(convert_to_aanet(model), lr=lr_alpha)  # (1)
    memory: ConcatDataset | None = None
    seen: list[int] = []
    results = []
    for phase, classes in enumerate(PHASES):
        seen += classes
        new = of_classes(train, classes)
        loader = DataLoader(
            ConcatDataset([new, memory]) if memory else new, batch_size=32, shuffle=True
        )
        balanced = None
        if memory:
            subset = balanced_subset(new, memory, generator=torch.default_generator)
            balanced = DataLoader(subset, batch_size=128)
        epochs = args.epochs if memory else 2 * args.epochs
        with bilevel.phase() if bilevel else nullcontext():  # (2)
            groups = parameter_groups(model, lr=0.05, weight_decay=5e-4)
            optimizer = torch.optim.SGD(groups, momentum=0.9)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
            for _ in range(epochs):
                model.train()
                for x, y in loader:
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
                schedule.step()
                if bilevel:
                    bilevel.after_epoch(balanced)  # (3)
                progress.update()
        features, _, labels = outputs(model, new)
        chosen = herd_classes(features, labels, args.memory_per_class)
        kept = Subset(new, torch.cat(list(chosen.values())).tolist())
        memory = ConcatDataset([*memory.datasets, kept] if memory else [kept])
        results.append(accuracies(model, memory, of_classes(test, seen)))
        shown = {rule: f"{value:.1f}" for rule, value in results[-1].items()}
        progress.set_postfix(arm=arm, seed=seed, phase=phase, **shown)
    return results, bilevel.history if bilevel else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0], help="one run of each arm per seed")
    add("--epochs", type=int, default=12, help="epochs of a phase, twice as many in the first")
    add("--memory-per-class", type=int, default=5, help="exemplars of each class")
    add("--output", type=Path, default=Path("runs/own_loop"), help="folder for alpha.png")
    args = parser.parse_args()
    if args.epochs < 1 or args.memory_per_class < 1:
        parser.error("--epochs and --memory-per-class: must be ≥ 1.")

    results: dict[str, list[list[dict]]] = {arm: [] for arm in ARMS}
    steps = len(ARMS) * len(args.seeds) * args.epochs * (len(PHASES) + 1)
    with tqdm(total=steps, desc="epochs") as progress:
        for seed in args.seeds:
            for arm in ARMS:
                by_phase, history = run(arm, args, seed, progress)
                results[arm].append(by_phase)

    print("\naccuracy (%) on all classes seen, mean over seeds, ± half the range of the average")
    phases = "  ".join(f"phase {phase}" for phase in range(len(PHASES)))
    for rule in ("head", "nearest mean"):
        print(f"\n{'by ' + rule:18}  {phases}  average")
        for arm, runs in results.items():
            values = [[phase[rule] for phase in by_phase] for by_phase in runs]
            averages = [statistics.mean(by_phase) for by_phase in values]
            spread = (max(averages) - min(averages)) / 2
            means = (statistics.mean(column) for column in zip(*values, strict=True))
            cells = "  ".join(f"{mean:7.1f}" for mean in means)
            print(f"{arm:18}  {cells}  {statistics.mean(averages):7.1f} ± {spread:.1f}")
    args.output.mkdir(parents=True, exist_ok=True)
    plot_alpha(history, args.output / "alpha.png")
    print(f"\nα of the last run: {args.output / 'alpha.png'}")


if __name__ == "__main__":
    main()
