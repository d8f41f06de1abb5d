"""LUCIR, PODNet and Mnemonics as Avalanche strategies.

`IncrementalStrategy` documents the options that they share.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from aanets_plugin import baselines

from .incremental import IncrementalStrategy


class LUCIR(IncrementalStrategy):
    """LUCIR (Hou et al. 2019); see `aanets_plugin.baselines.LUCIR`.

    Example:
        strategy = LUCIR(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            method=baselines.LUCIR(margin=0.4),
            train_mb_size=128,
            plugins=[AANetPlugin()],
        )
    """

    method_type = baselines.LUCIR


class PODNet(IncrementalStrategy):
    """PODNet (Douillard et al. 2020); see `aanets_plugin.baselines.PODNet`."""

    method_type = baselines.PODNet


class Mnemonics(IncrementalStrategy):
    """Mnemonics (Liu et al. 2020); see `aanets_plugin.baselines.Mnemonics`.

    Learned exemplars are tensors, inputs of the network. `exemplar_transform` is applied to them in
    training, instead of the transforms of the data.
    """

    method_type = baselines.Mnemonics

    def __init__(
        self, *, exemplar_transform: Callable[[Tensor], Tensor] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.exemplar_transform = exemplar_transform
