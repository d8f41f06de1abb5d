"""What the options of the command line ask for: checked, and as the settings of a comparison."""

import argparse
from dataclasses import replace
from typing import Any

from aanets_plugin.baselines.method import Method
from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.options import AANET_OPTIONS
from aanets_plugin.experiments.presets import Setting, default_split, setting
from aanets_plugin.experiments.saved_config import SavedConfig
from aanets_plugin.experiments.settings import Memory
from aanets_plugin.experiments.splits import PAPER_SEED, check_increments, check_split

DEFAULT_VALUES: dict[str, Any] = {
    "dataset": "digits",
    "order": [str(PAPER_SEED)],
    "seed": 0,
    "precision": "no",
    "compile": False,
    "pretrained": False,
    "strict_memory": False,
}
"""Of options that a config may set; not those of a dataset."""

TOGETHER = (
    {"base_classes", "phases", "increments"},
    {"memory_per_class", "memory_total"},
    {"seed", "seeds"},
)
"""If one of these is given, the config does not set the others."""
OF_THE_DATASET = ("data", "images_per_class", "image_size", "subset", "increments", "order")


def complete(args: argparse.Namespace) -> SavedConfig | None:
    """Give options that were not given the values of --config, and then their defaults."""
    saved = None if args.config is None else SavedConfig.read(args.config)
    if saved is not None:
        if args.preset is not None:
            raise ConfigurationError(
                f"--config {args.config}: cannot be combined with --preset {args.preset}. Leave "
                f"out one or the other."
            )
        given = {name for name, value in vars(args).items() if value is not None}
        kept = {name for group in TOGETHER if group & given for name in group}
        if args.dataset not in (None, saved.options["dataset"]):
            kept.update(OF_THE_DATASET)
        for name, value in saved.options.items():
            if name not in given | kept:
                setattr(args, name, value)
        for name in ("dataset", "backbone"):
            if getattr(args, name) is None:
                raise ConfigurationError(
                    f"--config {args.config}: does not say the {name}. Add --{name}."
                )
    for name, value in DEFAULT_VALUES.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return saved


def check_options(args: argparse.Namespace) -> None:
    """Check values and combinations that argparse cannot check."""
    if args.no_aanet:
        alone = ("fixed_alpha", "strict_memory", "controls")
        useless = [name for name in alone if getattr(args, name)]
        useless += [name for name in AANET_OPTIONS if getattr(args, name) is not None]
        if useless:
            flags = ", ".join("--" + name.replace("_", "-") for name in useless)
            raise ConfigurationError(
                f"--no-aanet: cannot be combined with {flags}. Leave out one or the other."
            )
    if args.imbalanced_alpha is not None and args.alpha_per_class is not None:
        raise ConfigurationError(
            f"--alpha-per-class {args.alpha_per_class}: cannot be combined with "
            f"--imbalanced-alpha, which uses all samples. Leave out one or the other."
        )
    if args.alpha_lr is not None and not args.alpha_lr > 0:
        raise ConfigurationError(
            f"--alpha-lr {args.alpha_lr:g}: must be > 0. To compare with a fixed α, add "
            f"--fixed-alpha."
        )
    if args.increments is not None:
        others = [name for name in ("base_classes", "phases") if getattr(args, name) is not None]
        if others:
            flags = " and ".join("--" + name.replace("_", "-") for name in others)
            raise ConfigurationError(
                f"--increments {','.join(map(str, args.increments))}: cannot be combined with "
                f"{flags}. Leave out one or the other."
            )
    seeds = args.seeds or [args.seed]
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigurationError(
            f"--seeds {' '.join(map(str, seeds))}: must be ≥ 0 and different from each other."
        )
    if args.workers is not None and args.workers < 0:
        raise ConfigurationError(f"--workers {args.workers}: must be ≥ 0.")


def setting_from(
    args: argparse.Namespace, method: Method, saved: SavedConfig | None = None
) -> Setting:
    """The settings of dataset and preset for a method, or of a config, with the given options."""
    if saved is None:
        chosen = setting(args.dataset, args.preset, method)
    else:
        chosen = Setting(args.backbone, saved.training, color_jitter=saved.color_jitter)
    chosen = chosen.with_epochs(args.epochs, args.base_epochs)
    given = {name: value for name, value in vars(args).items() if value is not None}
    names = ("batch_size", "lr", "workers", "channels_last")
    training = {name: given[name] for name in names if name in given}
    other = {name: given[name] for name in ("backbone", "memory_per_class") if name in given}
    return replace(chosen, training=replace(chosen.training, **training), **other)


def increments_from(args: argparse.Namespace, classes: int) -> list[int]:
    """The number of new classes in each phase."""
    if args.increments is not None:
        return check_increments(args.increments, classes)
    base_classes, phases = default_split(classes, args.base_classes, args.phases)
    return check_split(classes, base_classes=base_classes, phases=phases)


def memory_from(args: argparse.Namespace, setting: Setting) -> Memory:
    """The memory that the options ask for; without them, that of the setting."""
    per_class = setting.memory_per_class if args.memory_total is None else None
    return Memory(per_class=per_class, total=args.memory_total, strict=args.strict_memory)


def aanet_config_from(
    args: argparse.Namespace, saved: SavedConfig | None = None
) -> AANetConfig | None:
    """The options of AANets, on top of those of a config; None with --no-aanet."""
    if args.no_aanet:
        return None
    explicit = {field: getattr(args, name) for name, field in AANET_OPTIONS.items()}
    if args.blocks is not None:
        explicit["blocks"] = tuple(args.blocks.split("+"))
    given = {field: value for field, value in explicit.items() if value is not None}
    if saved is not None and saved.aanets is not None:
        return replace(saved.aanets, **given)
    return AANetConfig(**given)
