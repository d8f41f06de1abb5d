"""What a run has learned: network, α, exemplars and measurements, as a state to go on from."""

from __future__ import annotations

from typing import Any

from continuum.rehearsal import RehearsalMemory

from aanets_plugin.adapters.continuum.memory import restore, state_of
from aanets_plugin.baselines.method import Method
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import AANetConfig
from aanets_plugin.convert import convert_to_aanet


class Learned:
    """The plain network at first; an AANet, if there is to be one, after the first phase."""

    def __init__(
        self,
        net: IncrementalNet,
        method: Method,
        aanets: AANetConfig | None,
        exemplars: RehearsalMemory,
    ) -> None:
        self.net = net
        self.method = method
        self.aanets = aanets
        self.exemplars = exemplars
        self.bilevel: BilevelStrategy | None = None
        self.rows: list[dict[str, Any]] = []

    def end_base(self) -> None:
        """The first phase is over: with AANets, its network becomes the stable branch."""
        if self.aanets is None:
            return
        convert_to_aanet(self.net.backbone, **self.aanets.conversion)
        self.bilevel = BilevelStrategy.from_config(
            self.net, self.aanets, base_phase=False, first_phase=1
        )

    def weights(self) -> dict[str, Any]:
        """The network and the state of α."""
        bilevel = None if self.bilevel is None else self.bilevel.state_dict()
        return {"net": self.net.state_dict(), "bilevel": bilevel}

    def load_weights(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        if self.bilevel is not None:
            self.bilevel.load_state_dict(state["bilevel"])

    def state_dict(self) -> dict[str, Any]:
        """Everything, at the end of a phase."""
        exemplars = state_of(self.exemplars) if len(self.exemplars) else None
        return {"rows": self.rows, "exemplars": exemplars, **self.weights()}

    def load_state_dict(self, state: dict[str, Any], increments: list[int]) -> None:
        """Become what `state_dict` was of; `increments` are the classes that each phase brings."""
        self.rows = state["rows"]
        for new in increments[1 : len(self.rows)]:
            self.net.fc = self.method.grow(self.net.fc, new)
        self.end_base()
        self.load_weights(state)
        if state["exemplars"] is not None:
            restore(self.exemplars, state["exemplars"])
