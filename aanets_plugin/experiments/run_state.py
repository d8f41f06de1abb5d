"""The state of a run: network, α, exemplars and measurements."""

from typing import Any

from continuum.rehearsal import RehearsalMemory
from torch import Tensor

from aanets_plugin.adapters.continuum.memory import restore, state_of
from aanets_plugin.baselines.lifecycle import grow_head
from aanets_plugin.baselines.method import Method
from aanets_plugin.baselines.metrics import PhaseMetrics
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.bilevel import BilevelStrategy
from aanets_plugin.config import AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.experiments.channels_last import to_channels_last
from aanets_plugin.experiments.results import RULES


class RunState:
    """The network is plain in the first phase and becomes an AANet at its end, if so configured."""

    def __init__(
        self,
        net: IncrementalNet,
        method: Method,
        aanets: AANetConfig | None,
        exemplars: RehearsalMemory,
        *,
        channels_last: bool = False,
    ) -> None:
        self.net = net
        self.method = method
        self.aanets = aanets
        self.exemplars = exemplars
        self.bilevel: BilevelStrategy | None = None
        self.rows: list[dict[str, Any]] = []
        self.means: tuple[Tensor, Tensor] | None = None  # of the exemplars, by `class_means`
        self.channels_last = channels_last
        self._set_format()

    def _set_format(self) -> None:
        if self.channels_last:
            to_channels_last(self.net)

    def end_base(self) -> None:
        """End the first phase. With AANets, the trained network becomes the stable branch."""
        if self.aanets is None:
            return
        convert_to_aanet(self.net.backbone, **self.aanets.conversion)
        self._set_format()
        self.bilevel = BilevelStrategy.from_config(
            self.net, self.aanets, base_phase=False, first_phase=1
        )

    def weights(self) -> dict[str, Any]:
        """Return the state of the network and of α."""
        bilevel = None if self.bilevel is None else self.bilevel.state_dict()
        return {"net": self.net.state_dict(), "bilevel": bilevel}

    def load_weights(self, state: dict[str, Any]) -> None:
        """Restore what `weights` has returned."""
        self.net.load_state_dict(state["net"])
        if self.bilevel is not None:
            self.bilevel.load_state_dict(state["bilevel"])

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state at the end of a phase."""
        exemplars = state_of(self.exemplars) if len(self.exemplars) else None
        return {"rows": self.rows, "exemplars": exemplars, "means": self.means, **self.weights()}

    def load_state_dict(self, state: dict[str, Any], increments: list[int]) -> None:
        """Restore from a `state_dict`. `increments` are the numbers of new classes by phase."""
        _check_rows(state["rows"], increments)
        self.rows, self.means = state["rows"], state.get("means")
        for new in increments[1 : len(self.rows)]:
            grow_head(self.method, self.net, new)
        self.end_base()
        self.load_weights(state)
        if state["exemplars"] is not None:
            restore(self.exemplars, state["exemplars"])


def _check_rows(rows: list[Any], increments: list[int]) -> None:
    """Check that these are the measurements of one phase after another."""
    for phase, row in enumerate(rows):
        for rule in RULES:
            if rule in row:
                PhaseMetrics(**row[rule])
        if (row["phase"], row["classes"]) != (phase, sum(increments[: phase + 1])):
            raise ValueError(f"row {phase} is that of another phase")
    if not 1 <= len(rows) <= len(increments):
        raise ValueError(f"there are {len(rows)} rows, must be 1 to {len(increments)}")
