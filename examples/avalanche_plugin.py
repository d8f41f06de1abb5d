"""Any of Avalanche's strategies, plain and with AANetPlugin, from the same seed.

python examples/avalanche_plugin.py
python examples/avalanche_plugin.py --strategy lucir --seeds 0 1 2
python examples/avalanche_plugin.py --strategy icarl --dataset cifar100 --data data --memory 2000 \\
    --experiences 6 --epochs 70 --lr 0.1 --device cuda

At least half of the classes come in the first experience, the rest in equal parts. By default on
scikit-learn's 8x8 digits. Prints a table, and writes accuracy.png and alpha.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from avalanche.benchmarks import SplitCIFAR100, nc_benchmark
from avalanche.models import SCRModel
from avalanche.training import supervised as avalanche
from avalanche.training.determinism.rng_manager import RNGManager
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset
from torchvision import datasets, transforms
from tqdm import tqdm

from aanets_plugin import AANetError, plot_alpha
from aanets_plugin.adapters.avalanche import LUCIR, AANetPlugin, Mnemonics, PODNet, repair_bic
from aanets_plugin.baselines import phase_metrics, resnet20, resnet32
from aanets_plugin.baselines.network import without_head
from aanets_plugin.experiments.results import Result, plot_accuracy

ARMS = ("plain", "AANets, learned α")
NEAREST_MEAN = ("icarl", "scr")  # the others predict by their head
OWN_HEAD = ("lucir", "podnet", "mnemonics")

# What a strategy takes beyond a network, an optimizer and the options of all: by the number of
# exemplars in total and for each experience.
STRATEGIES: dict[str, Callable[[int, int], tuple[Any, dict[str, Any]]]] = {
    "naive": lambda m, _: (avalanche.Naive, {}),
    "replay": lambda m, _: (avalanche.Replay, {"mem_size": m}),
    "lwf": lambda m, _: (avalanche.LwF, {"alpha": 1.0, "temperature": 2.0}),
    "ewc": lambda m, _: (avalanche.EWC, {"ewc_lambda": 1.0}),
    "mas": lambda m, _: (avalanche.MAS, {}),
    "si": lambda m, _: (avalanche.SynapticIntelligence, {"si_lambda": 0.1}),
    "agem": lambda m, part: (avalanche.AGEM, {"patterns_per_exp": part, "sample_size": 32}),
    "gem": lambda m, part: (avalanche.GEM, {"patterns_per_exp": part, "memory_strength": 0.5}),
    "der": lambda m, _: (avalanche.DER, {"mem_size": m, "batch_size_mem": 16}),
    "er_ace": lambda m, _: (avalanche.ER_ACE, {"mem_size": m, "batch_size_mem": 16}),
    "er_aml": lambda m, _: (avalanche.ER_AML, {"mem_size": m, "batch_size_mem": 16}),
    "mir": lambda m, _: (avalanche.MIR, {"mem_size": m, "subsample": 32, "batch_size_mem": 16}),
    "gdumb": lambda m, _: (avalanche.GDumb, {"mem_size": m}),
    "cumulative": lambda m, _: (avalanche.Cumulative, {}),
    "bic": lambda m, _: (avalanche.BiC, {"mem_size": m, "stage_2_epochs": 20}),
    "icarl": lambda m, _: (avalanche.ICaRL, {"memory_size": m, "fixed_memory": True}),
    "scr": lambda m, _: (avalanche.SCR, {"mem_size": m, "batch_size_mem": 32}),
    "joint": lambda m, _: (avalanche.JointTraining, {}),
    "from_scratch": lambda m, _: (avalanche.FromScratchTraining, {}),
    "lucir": lambda m, _: (LUCIR, {"mem_size": m}),
    "podnet": lambda m, _: (PODNet, {"mem_size": m}),
    "mnemonics": lambda m, _: (Mnemonics, {"mem_size": m}),
}


def make_benchmark(args: argparse.Namespace, seed: int) -> Any:
    """New classes in every experience, numbered in the order in which they come."""
    options: dict[str, Any] = {"seed": seed, "class_ids_from_zero_from_first_exp": True}
    if args.dataset == "cifar100":
        half = {"first_exp_with_half_classes": True, "dataset_root": args.data}
        return SplitCIFAR100(args.experiences, **half, **options)
    if args.dataset == "digits":
        (train, test), classes = digits(seed), 10
    else:
        train, test = (datasets.ImageFolder(args.data / part) for part in ("train", "val"))
        classes = len(train.classes)
        last = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
        crop = [transforms.RandomResizedCrop(args.size), transforms.RandomHorizontalFlip()]
        middle = [transforms.Resize(args.size), transforms.CenterCrop(args.size)]
        options["train_transform"] = transforms.Compose([*crop, *last])
        options["eval_transform"] = transforms.Compose([*middle, *last])
    step = classes // 2 // (args.experiences - 1)
    sizes = dict.fromkeys(range(1, args.experiences), step)
    sizes[0] = classes - sum(sizes.values())
    return nc_benchmark(train, test, args.experiences, False, per_exp_classes=sizes, **options)


def digits(seed: int) -> list[TensorDataset]:
    """Half for training, half for testing."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    y = torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return [TensorDataset(x[half], y[half]) for half in order.chunk(2)]


def make_strategy(args: argparse.Namespace, classes: int, plugins: list[Any]) -> Any:
    """The strategy with the parts of a network that it asks for."""
    small = args.dataset == "digits"
    backbone, head = without_head(resnet20(in_channels=1) if small else resnet32()), nn.Identity()
    if args.strategy == "scr":
        head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))  # a projection
    elif args.strategy not in OWN_HEAD:
        head = nn.Linear(64, classes)
    model = nn.Sequential(OrderedDict(backbone=backbone, head=head))
    kind, options = STRATEGIES[args.strategy](args.memory, args.memory // args.experiences)
    options["optimizer"] = torch.optim.SGD(model.parameters(), args.lr, 0.9, weight_decay=5e-4)
    if args.strategy == "bic":
        repair_bic()
    if args.strategy == "icarl":
        options |= {"feature_extractor": backbone, "classifier": head, "buffer_transform": None}
    elif args.strategy == "scr":
        options["model"] = SCRModel(backbone, head)
    elif args.strategy in OWN_HEAD:
        options["model"] = backbone
    else:
        options |= {"model": model, "criterion": nn.CrossEntropyLoss()}
    batch = 32 if small else 128
    if args.strategy == "er_aml":  # it waits for ever for a batch of one class from its memory
        options["feature_extractor"], batch = backbone, max(1, args.memory // classes)
    return kind(
        train_mb_size=batch,
        train_epochs=args.epochs,
        eval_mb_size=256,
        device=args.device,
        plugins=plugins,
        evaluator=None,
        **options,
    )


class Watch:
    """Moves the progress bar by epochs and collects predictions and labels."""

    def __init__(self, progress: tqdm) -> None:
        self.progress = progress

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.progress.update()

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.found.append((strategy.mb_output.argmax(1).cpu(), strategy.mb_y.cpu()))


def run(arm: str, args: argparse.Namespace, seed: int, progress: tqdm) -> tuple[Result, list[Any]]:
    """One arm over all experiences: accuracies after each, and α's history."""
    RNGManager.set_random_seeds(seed)
    benchmark, watch = make_benchmark(args, seed), Watch(progress)
    joint = args.strategy == "joint"  # one phase: both branches begin untrained
    aanets = AANetPlugin(blocks=args.blocks, stem=args.stem, lr=args.alpha_lr, base_phase=not joint)
    plugins = [watch] if arm == "plain" else [aanets, watch]
    strategy = make_strategy(args, benchmark.n_classes, plugins)
    increments = [benchmark.n_classes] if joint else benchmark.n_classes_per_exp
    rows: list[Any] = []
    for number in range(1, len(increments) + 1):
        strategy.train(benchmark.train_stream if joint else benchmark.train_stream[number - 1])
        strategy.eval(benchmark.test_stream if joint else benchmark.test_stream[:number])
        predictions, labels = map(torch.cat, zip(*watch.found, strict=True))
        rows.append(phase_metrics(predictions, labels, increments[:number], rows))
        progress.set_postfix(arm=arm, seed=seed, accuracy=f"{rows[-1].all:.1f}")
    metrics = [dataclasses.asdict(row) for row in rows]
    means = metrics if args.strategy in NEAREST_MEAN else None
    result = Result(arm, seed, list(itertools.accumulate(increments)), metrics, means)
    return result, [] if arm == "plain" else aanets.bilevel.history


def print_table(results: list[Result], strategy: str) -> None:
    print(f"\n{strategy}: accuracy (%) on all classes seen so far, mean over seeds")
    seen = "".join(f"{count:>8}" for count in results[0].classes)
    print(f"{'classes seen':18}{seen}{'average':>10}{'forgetting':>12}")
    for arm in ARMS:
        runs = [result.head for result in results if result.arm == arm]
        means = [statistics.mean(row["all"] for row in rows) for rows in zip(*runs, strict=True)]
        average = statistics.mean(rows[-1]["average"] for rows in runs)
        lost = [r[-1]["forgetting"] for r in runs if r[-1]["forgetting"] is not None]
        forgetting = f"{statistics.mean(lost):12.1f}" if lost else f"{'–':>12}"
        cells = "".join(f"{mean:8.1f}" for mean in means)
        print(f"{arm:18}{cells}{average:10.1f}{forgetting}")


def free_name(path: Path) -> Path:
    """`path`, or with the next free number at its end."""
    names = (Path(f"{path}-{n}" if n > 1 else path) for n in itertools.count(1))
    return next(name for name in names if not name.exists())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    names = ", ".join(STRATEGIES)
    add("--strategy", choices=STRATEGIES, default="replay", metavar="NAME", help=names)
    add("--dataset", choices=["digits", "cifar100", "folder"], default="digits")
    add("--data", type=Path, help="folder of CIFAR-100, or with train/CLASS/ and val/CLASS/")
    add("--size", type=int, default=32, help="of the images of a folder (32)")
    add("--seeds", "--seed", type=int, nargs="+", default=[0], help="one run of each arm for each")
    add("--epochs", type=int, default=10, help="per experience (10)")
    add("--experiences", type=int, default=3, help="at least 2 (3)")
    add("--memory", type=int, default=50, help="exemplars in total (50)")
    blocks = "all, scaling or frozen for each branch (all scaling)"
    add("--blocks", nargs="+", default=["all", "scaling"], metavar="BLOCK", help=blocks)
    add("--stem", choices=["stable", "plastic", "paired"], default="stable")
    add("--lr", type=float, default=0.05, help="of the strategy (0.05)")
    add("--alpha-lr", type=float, default=0.03, help="of α; 0 fixes it (0.03)")
    add("--device", default="cpu")
    add("--output", type=Path, help="default: runs/avalanche-NAME; a free name is taken")
    args = parser.parse_args()
    if args.epochs < 1 or args.memory < args.experiences or args.experiences < 2:
        parser.error("--epochs 1, --experiences 2 and --memory of as many is the least")
    if args.dataset == "folder" and not args.data:
        parser.error("--dataset folder needs --data DIR")

    logging.basicConfig(format="%(message)s")
    logging.getLogger("aanets_plugin").setLevel("INFO")  # where the balanced data come from
    logging.captureWarnings(True)  # Avalanche warns of its own calls
    logging.getLogger("py.warnings").addFilter(lambda r: "avalanche" not in r.getMessage())
    output = free_name(args.output or Path("runs") / f"avalanche-{args.strategy}")
    epochs = args.epochs * (1 if args.strategy == "joint" else args.experiences) * len(ARMS)
    results = []
    with tqdm(total=epochs * len(args.seeds), desc="epochs") as progress:
        for seed, arm in itertools.product(args.seeds, ARMS):
            try:
                result, history = run(arm, args, seed, progress)
            except AANetError as error:
                sys.exit(f"error: {error}")
            results.append(result)
    print_table(results, args.strategy)
    output.mkdir(parents=True)
    rule = "nearest_mean" if result.nearest_mean else "head"
    plot_accuracy(results, output / "accuracy.png", rule=rule, title=args.strategy)
    plot_alpha(history, output / "alpha.png")
    print(f"\n{output / 'accuracy.png'}\n{output / 'alpha.png'}, of the last seed")


if __name__ == "__main__":
    main()
