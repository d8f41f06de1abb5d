"""LUCIR, PODNet and Mnemonics as Avalanche strategies; see :class:`IncrementalStrategy` for the
options that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from aanets_plugin import baselines

from .incremental import IncrementalStrategy


class LUCIR(IncrementalStrategy):
    """LUCIR (Hou et al. 2019): imprinted new weights, fixed old ones, three losses.

    Example:
        >>> from aanets_plugin import baselines
        >>> from aanets_plugin.adapters.avalanche import LUCIR, AANetPlugin
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> strategy = LUCIR(
        ...     model=model,
        ...     optimizer=optimizer,
        ...     method=baselines.LUCIR(margin=0.4),
        ...     mem_size_per_class=20,
        ...     train_mb_size=128,
        ...     plugins=[AANetPlugin()],
        ... )
    """

    method_type = baselines.LUCIR


class PODNet(IncrementalStrategy):
    """PODNet (Douillard et al. 2020): pooled maps are kept, several proxies for each class, and
    the head is fine-tuned on the exemplars after each experience but the first."""

    method_type = baselines.PODNet


class Mnemonics(IncrementalStrategy):
    """Mnemonics (Liu et al. 2020) on LUCIR's losses: exemplars are learned, then fine-tuned on.

    Learned images are tensors as the network takes them, so that the transforms of the training
    data do not apply to them: `exemplar_transform` is what does. Their pixels stay within the
    range of the herded ones', by channel.
    """

    method_type = baselines.Mnemonics

    def __init__(
        self,
        *,
        exemplar_transform: Callable[[Tensor], Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.exemplar_transform = exemplar_transform
