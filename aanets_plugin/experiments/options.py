"""The options of the command line, their help and their checks."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from aanets_plugin.baselines.method import Method
from aanets_plugin.config import DEFAULTS, OFFICIAL_LOOPS, STEMS, AANetConfig
from aanets_plugin.experiments.backbones import OUR_BACKBONES
from aanets_plugin.experiments.datasets import DATASETS, IMAGE_SIZE
from aanets_plugin.experiments.launch import add_launch_options
from aanets_plugin.experiments.presets import (
    DATASET_SETTINGS,
    MOST_PHASES,
    PRESETS,
)
from aanets_plugin.experiments.readers import SUBSETS
from aanets_plugin.experiments.splits import PAPER_SEED
from aanets_plugin.experiments.trackers import TRACKERS
from aanets_plugin.experiments.variants import CONTROLS

AANET_OPTIONS = {
    "blocks": "blocks",
    "stem": "stem",
    "stages": "stages",
    "alpha": "alpha",
    "alpha_lr": "lr",
    "alpha_momentum": "momentum",
    "no_normalize": "normalize",
    "official_alpha": "official",
    "phi_decay": "phi_decay",
    "update_base": "update_base",
    "alpha_batches": "max_batches",
    "alpha_per_class": "per_class",
    "imbalanced_alpha": "balanced",
}
"""Options of the command line and the field of `AANetConfig` that each of them sets."""


def make_parser(method: Method, description: str | None = None) -> argparse.ArgumentParser:
    """The parser of a script that compares `method` with and without AANets."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, method.name)
    return parser


def add_options(parser: argparse.ArgumentParser, method: str = "METHOD") -> None:
    """Add the options of a comparison of `method` with and without AANets."""
    group = parser.add_argument_group
    data = "Classes are learned in phases. Exemplars are the images of old classes that are kept."
    _add_data_options(group("data and memory", data))
    arms = "By default the plain network is compared with AANets with learned α, with one seed."
    _add_comparison_options(group("comparison", arms))
    _add_training_options(group("network and training"))
    python_only = "In Python only: a schedule for the step size of α, AANets(schedule=…)."
    _add_aanet_options(group("AANets", python_only))
    _add_output_options(group("output and hardware"), method)


def _add_data_options(group: Any) -> None:
    add = group.add_argument
    number = partial(add, type=int, metavar="N")
    add("--dataset", choices=DATASETS, help="dataset; default: digits")
    add("--data", type=Path, metavar="FOLDER", help="folder of the dataset; not for digits")
    number("--images-per-class", help="use only N training images of each class; default: all")
    add(
        "--subset",
        choices=SUBSETS,
        help="which 100 classes of a full ImageNet imagenet-subset has: LUCIR's list or PODNet's; "
        "default: lucir",
    )
    number("--image-size", help=f"size of ImageNet and folder images; default: {IMAGE_SIZE}")
    number(
        "--base-classes",
        help="number of classes in the first phase, 0 for equal phases; default: half of them",
    )
    number(
        "--phases",
        help=f"phases after the first one; default: the largest number up to {MOST_PHASES} that "
        f"divides the remaining classes",
    )
    add(
        "--increments",
        type=_numbers,
        metavar="N,N,…",
        help="instead of these two: the number of new classes of each phase, such as 50,10,20,20",
    )
    add(
        "--order",
        nargs="+",
        metavar="ORDER",
        help="order of the classes: a seed that shuffles them, or a file with all of them as "
        "numbers from 0; several orders are compared with each seed; default: "
        f"{PAPER_SEED}, the paper's",
    )
    exclusive = group.add_mutually_exclusive_group()
    memory = _by_dataset("memory_per_class")
    number = partial(exclusive.add_argument, type=int, metavar="N")
    number("--memory-per-class", help=f"exemplars kept of each class; default: {memory}")
    number("--memory-total", help="exemplars kept of all classes together")
    add(
        "--strict-memory",
        action=argparse.BooleanOptionalAction,
        help="count the additional parameters of AANets as memory and keep fewer exemplars (the "
        "paper's strict memory budget)",
    )


def _add_comparison_options(group: Any) -> None:
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="start from the settings of a run: its config.json or its folder; explicit options "
        "override them; the arms are those of the command line",
    )
    switch = partial(group.add_argument, action="store_true")
    switch("--no-aanet", help="run the plain network only")
    switch("--fixed-alpha", help="also run AANets with α fixed at its initial weights")
    switch("--upper-bound", help="also run joint training on all data seen so far")
    group.add_argument(
        "--controls",
        nargs="+",
        choices=CONTROLS,
        default=[],
        help="also run fair controls. memory: plain with the exemplars that the additional "
        "parameters of AANets would buy; compute: plain with as many more epochs as AANets cost; "
        "wider: plain with as many parameters; all_all: two branches that learn everything",
    )
    seeds = partial(group.add_mutually_exclusive_group().add_argument, type=int, metavar="N")
    seeds("--seed", help="random seed; default: 0")
    seeds("--seeds", nargs="+", help="several seeds, with one run of each arm for each of them")
    add_launch_options(group, alone="one after another in this process")


def _add_training_options(group: Any) -> None:
    add = group.add_argument
    number = partial(add, type=int, metavar="N")
    add(
        "--preset",
        choices=PRESETS,
        help=f"'paper': the paper's backbone, epochs, schedule, learning rate, batch size, split "
        f"and memory for {', '.join(PRESETS['paper'])}; explicit options override the preset; the "
        f"paper's three runs are --seeds 0 1 2",
    )
    add(
        "--backbone",
        metavar="NAME",
        help=f"{', '.join(OUR_BACKBONES)}, or the name of a torchvision or timm model "
        f"(torchvision:NAME or timm:NAME to say which); default: {_by_dataset('backbone')}",
    )
    switch = partial(add, action=argparse.BooleanOptionalAction)
    switch("--pretrained", help="start from the published weights")
    number("--epochs", help=f"epochs of each later phase; default: {_by_dataset('epochs')}")
    number(
        "--base-epochs",
        help=f"epochs of the first phase; default: {_by_dataset('base_epochs')}; with --epochs, in "
        f"proportion to it",
    )
    number("--batch-size", help=f"of all processes; default: {_by_dataset('batch_size')}")
    add("--lr", type=float, help=f"initial learning rate; default: {_by_dataset('lr')}")
    number("--workers", help=f"processes that load images; default: {_by_dataset('workers')}")


def _add_aanet_options(group: Any) -> None:
    add = group.add_argument
    number = partial(add, type=int, metavar="N")
    official = AANetConfig(official=True)
    add(
        "--blocks",
        metavar="A+B",
        help="what each branch learns, the plastic branch first: all (everything), scaling (one "
        f"scale per kernel slice, and normalisation) or frozen (nothing); default: "
        f"{'+'.join(DEFAULTS.blocks)}",
    )
    stems = ", ".join(STEMS)
    add(
        "--stem",
        help=f"how layers before the first stage learn: {stems}; default: {DEFAULTS.stem}",
    )
    add(
        "--stages",
        nargs="+",
        metavar="NAME",
        help="names of the backbone's modules to convert, in forward order; default: all residual "
        "stages, found automatically",
    )
    add(
        "--alpha",
        type=float,
        nargs="+",
        metavar="W",
        help="initial aggregation weights, one per branch, that sum to 1; default: equal weights",
    )
    add(
        "--alpha-lr",
        type=float,
        metavar="LR",
        help=f"step size of α; default: {DEFAULTS.lr:g}, with --official-alpha {official.lr:g}",
    )
    add(
        "--alpha-momentum",
        type=float,
        metavar="M",
        help=f"momentum of the steps of α; default: {DEFAULTS.momentum:g}, with --official-alpha "
        f"{official.momentum:g}",
    )
    # The value of an AANets option is None unless it is given.
    switch = partial(add, action="store_const")
    switch(
        "--no-normalize",
        const=False,
        help="do not scale the steps of α by its past gradients (Eq. 8 as printed)",
    )
    add(
        "--official-alpha",
        nargs="?",
        const="lucir",
        choices=OFFICIAL_LOOPS,
        help="update α exactly as the authors' code does: in its loop for LUCIR α's gradient is "
        "never cleared, in that for iCaRL it is; default: the update of this package; without a "
        "value: lucir",
    )
    add(
        "--phi-decay",
        type=float,
        metavar="DECAY",
        help="with --official-alpha: weight decay that pulls φ towards 0, 5e-4 in the authors' "
        "code; default: none",
    )
    switch(
        "--update-base",
        const=True,
        help="multiply the scaling weights φ into the frozen weights after each phase (the paper's "
        "supplement A)",
    )
    number("--alpha-batches", help="batches of balanced data in one update of α; default: all")
    number(
        "--alpha-per-class",
        help="balanced samples of each class for α; default: as many as the smallest class has",
    )
    switch(
        "--imbalanced-alpha",
        const=False,
        help="learn α on all training data of a phase instead of a balanced subset, for comparison "
        "(the paper's Table 1, row 6)",
    )


def _add_output_options(group: Any, method: str) -> None:
    add, folder = group.add_argument, f"runs/{method}"
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help=f"folder for the results; default: {folder}, or {folder}-2 and so on if it exists",
    )
    add("--resume", action="store_true", help="continue the runs in the output folder")
    add("--keep-phases", action="store_true", help="keep the network after each phase")
    add("--device", default="auto", help="cpu, cuda, cuda:1, mps, …; default: the best available")
    add(
        "--precision",
        choices=("no", "fp16", "bf16"),
        help="mixed precision; default: no",
    )
    switch = partial(add, action=argparse.BooleanOptionalAction)
    switch(
        "--compile",
        help="compile the training step with torch.compile, which takes a minute or two in each "
        "phase, and fold BatchNorm into the networks that only predict; the results are the same "
        "up to rounding; default: no",
    )
    switch(
        "--channels-last",
        help="store images and kernels with the channels last, which is faster; the results are "
        "the same up to rounding; default: if the network allows for it",
    )
    add(
        "--log-with",
        nargs="+",
        choices=TRACKERS,
        metavar="TRACKER",
        help=f"send the curves of each run to {', '.join(TRACKERS)}",
    )
    add("--tensorboard", action="store_true", help="the same as --log-with tensorboard")


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be numbers of classes separated by commas, such as 50,10,10"
        ) from None


def _by_dataset(field: str) -> str:
    """The default of each dataset, for help."""
    datasets: dict[str, list[str]] = {}
    for dataset, defaults in DATASET_SETTINGS.items():
        value = {**vars(defaults.training), **vars(defaults)}[field]
        datasets.setdefault(str(value), []).append(dataset)
    if len(datasets) == 1:
        return next(iter(datasets))
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in datasets.items())
