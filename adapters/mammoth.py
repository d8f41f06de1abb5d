"""mammoth: `with_aanets(model)` gives a ContinualModel on a ResNet its AANets version.

Without an edit, from mammoth's folder, with the options of its `main.py`:

    python -m aanets_plugin.adapters.mammoth --model er --dataset seq-cifar100 --buffer_size 500 …

and `--aanets lr=0.1` for an option of `AANetConfig`, as often as needed. In code, after
`models.get_model`:

    from aanets_plugin.adapters.mammoth import with_aanets
    model = with_aanets(model)
"""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, Subset

from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import ConfigurationError, UnsupportedModelError
from aanets_plugin.exemplars import targets_of
from aanets_plugin.levels import AdaptiveLevel, levels
from aanets_plugin.nested import aggregate

from .bookkeeping import carry_over
from .hosts import HostAdapter

Model = TypeVar("Model")

_TRAINS_ONCE = (
    "trains once, after the last task. There is no earlier network to be stable, so that AANets "
    "has nothing to aggregate."
)
_ADDS_NETWORKS = "adds a network for each task. AANets needs the same backbone in every task."
_COPIES_TO_PLAIN = (
    "builds a plain network and copies the weights of its own network into it. A converted network "
    "has more weights than a plain one."
)
REFUSED = {
    "gdumb": _TRAINS_ONCE,
    "gdumb_lider": _TRAINS_ONCE,
    "joint": _TRAINS_ONCE,
    "joint_gcl": _TRAINS_ONCE,
    "pnn": _ADDS_NETWORKS,
    "icarl_lider": _COPIES_TO_PLAIN,
    "spr": _COPIES_TO_PLAIN,
    "twf": _COPIES_TO_PLAIN,
}
"""Names of mammoth's models that cannot have AANets, and why."""

TRAIN_IN_END_TASK = ("er_ace_aer_abs", "puridiver")
"""Names of mammoth's models that go on training the network in `end_task`."""


def with_aanets(model: Model, **options: Any) -> Model:
    """Convert the network of a mammoth model and learn α in its training; returns `model`.

    Every task is a phase. α learns after each epoch, on equally many samples of every class seen so
    far: new ones from the task's data, old ones from the model's buffer. For a model
    without a buffer, 20 samples of each old class are kept for α alone. `model.bilevel` has
    the history of α, and mammoth's checkpoints carry its state.

    Models that train once at the end (GDumb, joint), add networks (PNN) or copy their network into
    a plain one (TwF, SPR, iCaRL with LiDER) are refused.

    Args:
        model: A ContinualModel, before its first task.
        options: Options of `AANetConfig`, and `loss_fn`, `base_phase` and `batch_size` of
            `HostAdapter`.
    """
    _check(model)
    adapter = MammothAdapter(model, **options)
    adapter.before("meta_begin_task", adapter.begin_task)
    # Before the model's own end of the epoch, which may keep a copy of the network.
    adapter.before("meta_end_epoch", lambda *_: adapter.after_epoch())
    # The model's own end of the task may measure how important parameters are. So the phase ends
    # before it, unless the training goes on in it.
    around = adapter.after if _is_one_of(model, TRAIN_IN_END_TASK) else adapter.before
    around("end_task", lambda *_: adapter.end_task())
    return model


class MammothAdapter(HostAdapter):
    """Where things are in a mammoth model."""

    def __init__(self, host: Any, **options: Any) -> None:
        self.data: Any = None
        super().__init__(host, **options)
        self.keep_in_state_dict(host)
        if hasattr(self.bilevel.model, "set_return_prerelu"):
            for level in levels(self.bilevel.model):
                level.register_forward_hook(_aggregate_prerelu)

    def begin_task(self, dataset: Any) -> None:
        """Begin a phase on the labelled samples of the task."""
        if self.bilevel.in_phase:  # restored from a checkpoint that mammoth wrote inside a task
            self.bilevel.cancel_phase()
        data = _Labelled(dataset.train_loader.dataset)
        labelled = (data.targets >= 0).nonzero().flatten()  # mammoth's unlabelled samples have -1
        self.data = data if len(labelled) == len(data) else Subset(data, labelled.tolist())
        self.begin_phase()

    def end_task(self) -> None:
        """End the phase. A task without an epoch was none: before --start_from, or inference."""
        if self.bilevel.epoch:
            self.end_phase()
        else:
            self.cancel_phase()

    def network(self) -> nn.Module:
        """Return the network, without the copies that a model keeps."""
        return self.host.net  # type: ignore[no-any-return]

    def training_data(self) -> Any:
        """Return the labelled samples of the task."""
        return self.data

    def memory(self) -> Any:
        """The buffer, if it has labels and tells how many of its places are in use."""
        buffer: Any = getattr(self.host, "buffer", None)
        if not hasattr(buffer, "labels") or not hasattr(buffer, "__len__") or not len(buffer):
            return None
        return _BufferData(buffer, self.host.normalization_transform)

    def optimizer(self) -> Optimizer | None:
        """Return the model's optimizer, which mammoth may keep for all tasks."""
        return getattr(self.host, "opt", None)

    def parameters_changed(
        self, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]
    ) -> None:
        """EWC, SI and A-GEM keep vectors over the weights, HAL and STAR a second network."""
        sizes = [parameter.numel() for parameter in before.values()]
        for name, value in list(vars(self.host).items()):
            if isinstance(value, Tensor) and value.shape == (sum(sizes),):
                # Importances of new parameters are 0, and they are compared with what they are now.
                new = torch.clone if name == "checkpoint" else torch.zeros_like
                parts = dict(zip(before, torch.split(value, sizes), strict=True))
                carried = carry_over(parts, before, after, new).values()
                setattr(self.host, name, torch.cat([part.flatten().to(value) for part in carried]))
        if hasattr(self.host, "grad_dims"):
            self.host.grad_dims = [p.numel() for p in self.host.parameters()]
        if hasattr(self.host, "spare_model"):
            self.host.spare_model = copy.deepcopy(self.host.net)
            old = self.host.spare_opt
            self.host.spare_opt = type(old)(self.host.spare_model.parameters(), **old.defaults)
        if hasattr(getattr(self.host, "pert", None), "proxy"):
            self.host.pert.proxy = copy.deepcopy(self.host.net)


class _Labelled(Dataset[Any]):
    """(x, y) of a mammoth dataset, whose items also have the image without augmentation."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def targets(self) -> Tensor:
        return targets_of(self.data.targets)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index][:2]
        return x, int(y)


class _BufferData(Dataset[Any]):
    """(x, y) of a copy of the buffer, which changes in the course of the training."""

    def __init__(self, buffer: Any, normalize: Any) -> None:
        self.examples = buffer.examples[: len(buffer)].cpu().clone()
        self.targets = buffer.labels[: len(buffer)].cpu().long().clone()
        self.normalize = normalize

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        x = self.examples[index]
        return self.normalize(x).reshape(x.shape), int(self.targets[index])


def _aggregate_prerelu(level: AdaptiveLevel, *_: Any) -> None:
    """Let mammoth's `layer[-1].prerelu`, which LiDER reads, be of all branches of the level."""
    last: list[Any] = [branch[-1] for branch in level.branches]  # type: ignore[index]
    if level.alpha is not None and getattr(last[0], "return_prerelu", False):
        last[0].prerelu = aggregate([block.prerelu for block in last], level.alpha)


def _check(model: Any) -> None:
    """Refuse what cannot work, before anything is touched."""
    name = type(model).__name__
    if not isinstance(getattr(model, "net", None), nn.Module) or not hasattr(model, "observe"):
        raise UnsupportedModelError(
            f"{name} is not a mammoth model: it has no `net` that is a torch.nn.Module, or no "
            f"`observe`. Pass what models.get_model returns."
        )
    for kind, reason in REFUSED.items():
        if _is_one_of(model, [kind]):
            raise UnsupportedModelError(f"{name} {reason}")


def _is_one_of(model: Any, names: Sequence[str]) -> bool:
    """Whether the model, or a model that it inherits from, has one of mammoth's names."""
    own = {str(vars(base).get("NAME")).replace("-", "_") for base in type(model).__mro__}
    return not own.isdisjoint(names)


def main() -> None:
    """Run mammoth's main.py, with AANets in the model that it builds."""
    options, sys.argv[1:] = _split_options(sys.argv[1:])
    sys.path.insert(0, os.getcwd())
    models: Any = importlib.import_module("models")
    get_model = models.get_model

    def get_model_with_aanets(args: argparse.Namespace, *rest: Any, **named: Any) -> Any:
        # mammoth logs its arguments and saves them in checkpoints, whose arguments are defaults.
        args.aanets = {**getattr(args, "aanets", {}), **options}
        return with_aanets(get_model(args, *rest, **named), **args.aanets)

    models.get_model = get_model_with_aanets
    importlib.import_module("main").main()


def _split_options(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options in `--aanets name=value`, and the arguments for mammoth."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--aanets", action="append", default=[], metavar="name=value")
    parsed, rest = parser.parse_known_args(arguments)
    known = [*(field.name for field in dataclasses.fields(AANetConfig)), "base_phase", "batch_size"]
    options = {}
    for pair in parsed.aanets:
        name, equals, value = pair.partition("=")
        if not equals or name not in known:
            raise ConfigurationError(
                f"--aanets {pair}: must be name=value, such as lr=0.1. The names are "
                f"{', '.join(known)}."
            )
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options, rest


if __name__ == "__main__":
    main()
