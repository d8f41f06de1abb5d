"""The options of the examples."""

from __future__ import annotations

import argparse
from pathlib import Path

from aanets_plugin.baselines.method import Method
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.backbones import OURS
from aanets_plugin.experiments.datasets import DATASETS
from aanets_plugin.experiments.presets import DEFAULTS, PRESETS


def parser(method: Method, description: str | None = None) -> argparse.ArgumentParser:
    """The options of an example that shows `method`."""
    found = argparse.ArgumentParser(
        usage="%(prog)s [options]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = found.add_argument_group("data")
    data.add_argument("--dataset", choices=DATASETS, default="digits", help="default: %(default)s")
    data.add_argument("--data", type=Path, metavar="FOLDER", help="where it is; digits need none")
    data.add_argument("--images-per-class", type=int, metavar="N", help="train on so many only")
    data.add_argument("--image-size", type=int, metavar="N", help="of image trees; default: 224")
    data.add_argument(
        "--base-classes",
        type=int,
        metavar="N",
        help="classes of the first phase, 0 for equal phases; default: 4 of the digits, else half",
    )
    data.add_argument(
        "--phases",
        type=int,
        metavar="N",
        help="phases after the first one; default: as many of up to 5 as share the other classes "
        "evenly",
    )
    memory = data.add_mutually_exclusive_group()
    memory.add_argument(
        "--memory-per-class",
        type=int,
        metavar="N",
        help=_default("memory_per_class", "exemplars of each class"),
    )
    memory.add_argument("--memory-total", type=int, metavar="N", help="exemplars of all classes")
    data.add_argument(
        "--strict-memory",
        action="store_true",
        help="what AANets add in parameters is taken from their exemplars (the paper's strict "
        "memory budget)",
    )

    net = found.add_argument_group("network")
    net.add_argument(
        "--backbone",
        metavar="NAME",
        help=f"{', '.join(OURS)}, or a network of torchvision or timm, also as torchvision:NAME, "
        f"timm:NAME; default: {_by_dataset('backbone')}",
    )
    net.add_argument("--pretrained", action="store_true", help="start from published weights")
    net.add_argument(
        "--blocks", metavar="A+B", help="all, scaling or frozen per branch; default: all+scaling"
    )
    net.add_argument("--stem", help="stable, plastic or paired; default: stable")
    net.add_argument(
        "--alpha-lr", type=float, metavar="LR", help="learning rate of α; default: 0.03"
    )

    arms = found.add_argument_group("what is compared")
    arms.add_argument("--no-aanet", action="store_true", help="the plain network only")
    arms.add_argument("--fixed-alpha", action="store_true", help="add AANets with α fixed at 0.5")
    arms.add_argument("--upper-bound", action="store_true", help="add joint training on all data")
    seeds = arms.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    seeds.add_argument("--seeds", type=int, nargs="+", metavar="N", help="a run for each")

    train = found.add_argument_group("training")
    train.add_argument(
        "--preset",
        choices=PRESETS,
        help="backbone, epochs, schedule, learning rate, batch size, split and memory of the paper "
        "(cifar100 and ImageNet); other options given go before it; its three runs: --seeds 0 1 2",
    )
    train.add_argument(
        "--epochs", type=int, metavar="N", help=_default("epochs", "of each later phase")
    )
    train.add_argument(
        "--base-epochs",
        type=int,
        metavar="N",
        help=f"of the first phase; default: {_by_dataset('base_epochs')}, or in proportion to "
        "--epochs",
    )
    train.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help=_default("batch_size", "samples in a step, all processes together"),
    )
    train.add_argument("--lr", type=float, help=_default("lr", "learning rate at the start"))
    train.add_argument(
        "--workers", type=int, metavar="N", help=_default("workers", "processes that load images")
    )

    how = found.add_argument_group("how it runs")
    how.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help=f"default: runs/{method.name}, or the next free name",
    )
    how.add_argument("--resume", action="store_true", help="go on with the runs in the folder")
    how.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1, mps, …; default: the best there is"
    )
    how.add_argument(
        "--precision",
        choices=("no", "fp16", "bf16"),
        default="no",
        help="mixed precision; default: no",
    )
    how.add_argument("--tensorboard", action="store_true", help="curves in each run's folder too")
    return found


def check(args: argparse.Namespace) -> None:
    """Refuse options that have no meaning together."""
    if args.no_aanet:
        others = ("fixed_alpha", "blocks", "stem", "alpha_lr", "strict_memory")
        useless = [_flag(name) for name in others if getattr(args, name) not in (None, False)]
        if useless:
            raise ConfigurationError(
                f"--no-aanet runs the plain network only, and {', '.join(useless)} is about "
                f"AANets; leave one or the other out"
            )
    if args.alpha_lr is not None and not args.alpha_lr > 0:
        raise ConfigurationError(
            f"--alpha-lr {args.alpha_lr:g}: expected more than 0; for α that does not learn, leave "
            f"it out and add --fixed-alpha"
        )
    seeds = args.seeds or [args.seed]
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigurationError(
            f"the seeds {' '.join(map(str, seeds))}: expected numbers from 0 on, each once"
        )
    if args.workers is not None and args.workers < 0:
        raise ConfigurationError(f"--workers {args.workers}: expected 0 or more")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default(field: str, what: str) -> str:
    """Help with the default of each dataset."""
    return f"{what}; default: {_by_dataset(field)}"


def _by_dataset(field: str) -> str:
    names: dict[str, list[str]] = {}
    for dataset, found in DEFAULTS.items():
        names.setdefault(str(getattr(found, field)), []).append(dataset)
    if len(names) == 1:
        return next(iter(names))
    return ", ".join(f"{value} ({', '.join(some)})" for value, some in names.items())
