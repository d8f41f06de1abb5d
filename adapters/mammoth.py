"""mammoth: `with_aanets(model)` gives a ContinualModel on a ResNet its AANets version.

Without an edit, from mammoth's folder, with the options of its `main.py`:

    python -m aanets_plugin.adapters.mammoth --model er --dataset seq-cifar100 --buffer_size 500 …

and `--aanets lr=0.1` for an option of `AANetConfig`, as often as needed. In code, after
`models.get_model`:

    from aanets_plugin.adapters.mammoth import with_aanets
    model = with_aanets(model)
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from aanets_plugin.alpha_gradient import unwrapped
from aanets_plugin.errors import ConfigurationError, UnsupportedModelError
from aanets_plugin.exemplars import targets_of

from .hosts import HostAdapter

Model = TypeVar("Model")


def with_aanets(model: Model, **options: Any) -> Model:
    """Convert the network of a mammoth model and learn α in its training; returns `model`.

    Every task is a phase. α learns after each epoch, on equally many samples of every class seen so
    far: new ones from the task's data, old ones from the model's buffer. For a model
    without a buffer, 20 samples of each old class are kept for α alone. `model.bilevel` has
    the history of α, and mammoth's checkpoints carry its state.

    GDumb, which trains a new network from its buffer at the very end, and PNN, which adds a network
    for each task, are refused.

    Args:
        model: A ContinualModel, before its first task.
        options: Options of `AANetConfig`, and `loss_fn`, `base_phase` and `batch_size` of
            `HostAdapter`.
    """
    _check(model)
    adapter = MammothAdapter(model, **options)
    adapter.before("meta_begin_task", adapter.begin_task)
    adapter.after("meta_end_epoch", lambda *_: adapter.after_epoch())
    # Before the model's own end of the task, which may measure how important parameters are.
    adapter.before("end_task", lambda *_: adapter.end_phase())
    return model


class MammothAdapter(HostAdapter):
    """Where things are in a mammoth model."""

    def __init__(self, host: Any, **options: Any) -> None:
        self.data: Any = None
        super().__init__(host, **options)
        self.keep_in_state_dict(host)

    def begin_task(self, dataset: Any) -> None:
        self.data = _Labelled(dataset.train_loader.dataset)
        self.begin_phase()

    def network(self) -> nn.Module:
        return self.host.net  # type: ignore[no-any-return]

    def training_data(self) -> Any:
        return self.data

    def memory(self) -> Any:
        """The buffer, if it has labels and tells how many of its places are in use."""
        buffer: Any = getattr(self.host, "buffer", None)
        if not hasattr(buffer, "labels") or not hasattr(buffer, "__len__") or not len(buffer):
            return None
        return _BufferData(buffer, self.host.normalization_transform)

    def optimizer(self) -> Optimizer | None:
        return getattr(self.host, "opt", None)

    def parameters_changed(
        self, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]
    ) -> None:
        """EWC, SI and A-GEM keep vectors with an entry for each weight of the network."""
        size = sum(p.numel() for p in before.values())
        for name, value in list(vars(self.host).items()):
            if isinstance(value, Tensor) and value.shape == (size,):
                # Importances of new parameters are 0, and they are compared with what they are now.
                fill = torch.Tensor.detach if name == "checkpoint" else torch.zeros_like
                new = {key: fill(parameter) for key, parameter in after.items()}
                setattr(self.host, name, _moved(value, before, after, new))
        if hasattr(self.host, "grad_dims"):
            self.host.grad_dims = [p.numel() for p in self.host.parameters()]


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


def _moved(
    vector: Tensor,
    before: dict[str, nn.Parameter],
    after: dict[str, nn.Parameter],
    new: dict[str, Tensor],
) -> Tensor:
    """A vector over the parameters of before as one over those of after."""
    parts = torch.split(vector, [p.numel() for p in before.values()])
    old = {id(p): part for p, part in zip(before.values(), parts, strict=True)}
    by_name = dict(zip(before, parts, strict=True))
    moved = []
    for name, parameter in after.items():
        part = old.get(id(parameter))
        if part is None and name in by_name and len(by_name[name]) == parameter.numel():
            part = by_name[name]
        moved.append(new[name].flatten().to(vector) if part is None else part)
    return torch.cat(moved)


def _check(model: Any) -> None:
    """Refuse what cannot work, before anything is touched."""
    name = type(model).__name__
    if not isinstance(getattr(model, "net", None), nn.Module) or not hasattr(model, "observe"):
        raise UnsupportedModelError(
            f"{name} is not a mammoth model: it has no `net` that is a torch.nn.Module, or no "
            f"`observe`. Pass what models.get_model returns."
        )
    kind = str(getattr(model, "NAME", "")).replace("_", "-")
    if kind.startswith("gdumb"):
        raise UnsupportedModelError(
            f"{name} trains a new network from its buffer after the last task. There is no earlier "
            f"network to be stable, so that AANets has nothing to aggregate."
        )
    if kind == "pnn" or hasattr(unwrapped(model.net), "old_cols"):
        raise UnsupportedModelError(
            f"{name} adds a network for each task. AANets needs the same backbone in every task."
        )


def main() -> None:
    """Run mammoth's main.py, with AANets in the model that it builds."""
    options = _take_options(sys.argv)
    sys.path.insert(0, os.getcwd())
    models: Any = importlib.import_module("models")
    get_model = models.get_model
    models.get_model = lambda *args, **kwargs: with_aanets(get_model(*args, **kwargs), **options)
    importlib.import_module("main").main()


def _take_options(arguments: list[str]) -> dict[str, Any]:
    """Take `--aanets name=value` out of the command line, which mammoth reads after this."""
    options = {}
    while "--aanets" in arguments:
        place = arguments.index("--aanets")
        pair = arguments[place + 1] if place + 1 < len(arguments) else ""
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"--aanets {pair}: must be name=value, such as lr=0.1.")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
        del arguments[place : place + 2]
    return options


if __name__ == "__main__":
    main()
