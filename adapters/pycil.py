"""PyCIL: `with_aanets(learner)` gives a learner with one backbone its AANets version.

In PyCIL's `trainer.py`:

    from aanets_plugin.adapters.pycil import with_aanets
    model = with_aanets(factory.get_model(args["model_name"], args))
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils.data import DataLoader

from aanets_plugin.alpha_gradient import unwrapped
from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.scaling import Scaled, freeze, release, scaled_layers

from .hosts import HostAdapter

Learner = TypeVar("Learner")


def with_aanets(learner: Learner, **options: Any) -> Learner:
    """Convert the backbone of a PyCIL learner and learn α in its training; returns `learner`.

    Every call of `incremental_train` is a phase. α learns after each epoch of the main training,
    on equally many samples of every class, with the learner's own transforms. They come from
    its training set and memory. For a learner without memory, 20 samples of each old class
    are kept for α alone. `learner.bilevel` has the history of α.

    Learners with a backbone for each task (DER, FOSTER, MEMO, BEEF, TagFex) are refused.

    Args:
        learner: What `factory.get_model` returns, before its first task.
        options: Options of `AANetConfig`, and `loss_fn`, `base_phase` and `batch_size` of
            `HostAdapter`.
    """
    _check(learner)
    merges = hasattr(learner, "_network_compression")
    adapter = (MergingAdapter if merges else PyCILAdapter)(learner, **options)
    main = _main_training(learner)
    adapter.phase_around(main)
    adapter.before(main, adapter.see_loaders)
    return learner


def _main_training(learner: Any) -> str:
    """The method of the main training. BiC has a second stage, for its bias layers alone."""
    return "_stage1_training" if hasattr(learner, "_stage1_training") else "_train"


class PyCILAdapter(HostAdapter):
    """Where things are in a PyCIL learner."""

    loader: DataLoader[Any]

    def see_loaders(self, *args: Any, **kwargs: Any) -> None:
        """The first loader among the arguments of the training is that of the training data."""
        loaders = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, DataLoader)]
        self.loader = loaders[0] if loaders else self.host.train_loader

    def network(self) -> nn.Module:
        """Return the network with its head."""
        return self.host._network  # type: ignore[no-any-return]

    def backbone(self) -> nn.Module:
        """Return the network's `convnet`."""
        return self.host._network.convnet  # type: ignore[no-any-return]

    def training_data(self) -> Any:
        """Return the data of the task, with exemplars if the learner replays them."""
        return self.loader.dataset

    def memory(self) -> Any:
        """The exemplars' arrays as a dataset like that of the training, with its transforms."""
        arrays = self.host._get_memory()
        if arrays is None:
            return None
        memory = copy.copy(self.training_data())
        memory.images, memory.labels = arrays
        return memory

    def steps_per_epoch(self) -> int:
        """Return the number of batches of the training loader."""
        return len(self.loader)

    def logits(self, outputs: Any) -> Tensor:
        """PASS has an output for each rotation of a class; the first one is the class itself."""
        logits = super().logits(outputs)
        return logits[:, ::4] if type(self.host).__name__ == "PASS" else logits


class MergingAdapter(PyCILAdapter):
    """SSRE, which trains convolutions called `adapter` and merges them into the kernels by name.

    In a stable branch an `adapter` has no φ. After the first task SSRE merges it into the frozen
    kernel, which is θ_base from then on, and in later tasks it is zero.
    """

    def begin_phase(self) -> None:
        """Begin a phase in which φ learns, too."""
        super().begin_phase()
        for layer in scaled_layers(self.bilevel.model):
            layer.requires_grad_(True)  # SSRE lets only what is called `adapter` learn

    def end_phase(self) -> None:
        """End the phase. In stable branches, the merged convolutions are frozen."""
        super().end_phase()
        for name, module in self.bilevel.model.named_modules():
            if isinstance(module, Scaled) and name.endswith(".adapter"):
                release(module, training=False)
                freeze(module)


def _check(learner: Any) -> None:
    """Refuse what cannot work, before anything is touched."""
    name = type(learner).__name__
    network = getattr(learner, "_network", None)
    main = _main_training(learner)
    if not isinstance(network, nn.Module) or not hasattr(learner, main):
        raise UnsupportedModelError(
            f"{name} is not a PyCIL learner: it has no `_network` that is a torch.nn.Module, or no "
            f"`{main}`. Pass what factory.get_model returns."
        )
    network = unwrapped(network)
    grows = [n for n in ("convnets", "AdaptiveExtractors") if hasattr(network, n)]
    if grows or hasattr(learner, "construct_dual_branch_network"):
        where = f" (`_network.{grows[0]}`)" if grows else ""
        raise UnsupportedModelError(
            f"{name} has more than one backbone{where}: it adds new ones as tasks come. AANets "
            f"gives one backbone a stable and a plastic branch, and needs the same one in "
            f"every task. Use a learner with a single `_network.convnet`, such as iCaRL or WA."
        )
    if not isinstance(getattr(network, "convnet", None), nn.Module):
        raise UnsupportedModelError(f"{name} has no `_network.convnet` to convert.")
