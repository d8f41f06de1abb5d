"""Run a strategy of Avalanche without and with AANetPlugin, from the same seed.

python examples/avalanche_plugin.py
python examples/avalanche_plugin.py --strategy lucir --seeds 0 1 2
python examples/avalanche_plugin.py --strategy icarl --dataset cifar100 --data data --memory 2000 \\
    --experiences 6 --epochs 70 --lr 0.1 --device cuda

The first experience has at least half of the classes, the others have equal parts of the rest. The
default dataset is scikit-learn's 8x8 digits. The script prints the accuracy after each experience
and writes accuracy.png and alpha.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
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

from aanets_plugin import AANetConfig, AANetError, plot_alpha
from aanets_plugin.adapters.avalanche import LUCIR, AANetPlugin, Mnemonics, PODNet, repair_bic
from aanets_plugin.baselines import phase_metrics, resnet20, resnet32
from aanets_plugin.baselines.network import without_head
from aanets_plugin.experiments import Result, accuracy_table, plot_accuracy

ARMS = ("plain", "AANets, learned α")
NEAREST_MEAN = ("icarl", "scr")  # the others predict with their head
OWN_HEAD = ("lucir", "podnet", "mnemonics")

# The class and the own options of each strategy. The arguments are the number of exemplars in total
# and per experience.
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
    """A benchmark with new classes in every experience, numbered in the order of arrival."""
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
    """scikit-learn's digits: half for training, half for testing."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    y = torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return [TensorDataset(x[half], y[half]) for half in order.chunk(2)]


def make_strategy(args: argparse.Namespace, classes: int, plugins: list[Any]) -> Any:
    """The strategy, with the network in the form that it needs."""
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
    if args.strategy == "er_aml":  # its memory must hold a whole batch of each class
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


class Recorder:
    """A plugin that updates the progress bar and collects predictions and labels."""

    def __init__(self, progress: tqdm) -> None:
        self.progress = progress

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.progress.update()

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        self.batches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.batches.append((strategy.mb_output.argmax(1).cpu(), strategy.mb_y.cpu()))


def run(arm: str, args: argparse.Namespace, seed: int, progress: tqdm) -> tuple[Result, list[Any]]:
    """Run one arm over all experiences. Returns the accuracies and the history of α."""
    RNGManager.set_random_seeds(seed)
    benchmark, recorder = make_benchmark(args, seed), Recorder(progress)
    joint = args.strategy == "joint"  # a single experience: both branches start untrained
    aanets = AANetPlugin(blocks=args.blocks, stem=args.stem, lr=args.alpha_lr, base_phase=not joint)
    plugins = [recorder] if arm == "plain" else [aanets, recorder]
    strategy = make_strategy(args, benchmark.n_classes, plugins)
    increments = [benchmark.n_classes] if joint else benchmark.n_classes_per_exp
    rows: list[Any] = []
    for number in range(1, len(increments) + 1):
        strategy.train(benchmark.train_stream if joint else benchmark.train_stream[number - 1])
        strategy.eval(benchmark.test_stream if joint else benchmark.test_stream[:number])
        predictions, labels = map(torch.cat, zip(*recorder.batches, strict=True))
        rows.append(phase_metrics(predictions, labels, increments[:number], rows))
        progress.set_postfix(arm=arm, seed=seed, accuracy=f"{rows[-1].all:.1f}")
    metrics = [dataclasses.asdict(row) for row in rows]
    means = metrics if args.strategy in NEAREST_MEAN else None
    result = Result(arm, seed, list(itertools.accumulate(increments)), metrics, means)
    return result, [] if arm == "plain" else aanets.bilevel.history


def free_name(path: Path) -> Path:
    """`path`, or `path`-2, `path`-3 and so on, if it exists."""
    names = (Path(f"{path}-{n}" if n > 1 else path) for n in itertools.count(1))
    return next(name for name in names if not name.exists())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nDefaults are in brackets.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = f"{', '.join(STRATEGIES)} [%(default)s]"
    defaults = AANetConfig()
    add("--strategy", choices=STRATEGIES, default="replay", metavar="NAME", help=names)
    add("--dataset", choices=["digits", "cifar100", "folder"], default="digits", help="[digits]")
    add("--data", type=Path, help="folder of CIFAR-100, or one with train/CLASS/ and val/CLASS/")
    add("--size", type=int, default=32, help="image size of a folder dataset [%(default)s]")
    add("--seeds", "--seed", type=int, nargs="+", default=[0], help="one run per arm and seed [0]")
    add("--epochs", type=int, default=10, help="epochs of each experience [%(default)s]")
    add("--experiences", type=int, default=3, help="number of experiences, ≥ 2 [%(default)s]")
    add("--memory", type=int, default=50, help="number of exemplars in total [%(default)s]")
    blocks = f"all, scaling or frozen for each branch [{' '.join(defaults.blocks)}]"
    add("--blocks", nargs="+", default=defaults.blocks, metavar="BLOCK", help=blocks)
    add("--stem", default=defaults.stem, help="stable, plastic or paired [%(default)s]")
    add("--lr", type=float, default=0.05, help="learning rate of the strategy [%(default)s]")
    add(
        "--alpha-lr", type=float, default=defaults.lr, help="step size of α, 0: fixed [%(default)s]"
    )
    add("--device", default="cpu", help="cpu, cuda, cuda:1, … [%(default)s]")
    add("--output", type=Path, help="folder for the plots [runs/avalanche-NAME]")
    args = parser.parse_args()
    if args.epochs < 1 or args.experiences < 2 or args.memory < args.experiences:
        parser.error("must be: --epochs ≥ 1, --experiences ≥ 2, --memory ≥ --experiences.")
    if args.dataset == "folder" and not args.data:
        parser.error("--dataset folder: needs --data FOLDER.")

    logging.basicConfig(format="%(message)s")
    logging.getLogger("aanets_plugin").setLevel("INFO")  # logs where the balanced data come from
    logging.captureWarnings(True)  # Avalanche warns about its own calls
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
    rule = "nearest_mean" if args.strategy in NEAREST_MEAN else "head"
    print(f"\n{args.strategy}\n\n{accuracy_table(results, rule=rule)}")
    output.mkdir(parents=True)
    plot_accuracy(results, output / "accuracy.png", rule=rule, title=args.strategy)
    plot_alpha(history, output / "alpha.png")
    print(f"{output / 'accuracy.png'}\n{output / 'alpha.png'} (of the last seed)")


if __name__ == "__main__":
    main()
