"""Arm: one side of a comparison; the usual arms, and the fair controls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aanets_plugin.baselines.joint import Joint
from aanets_plugin.baselines.lifecycle import Backbone
from aanets_plugin.baselines.method import Method
from aanets_plugin.config import AANetConfig
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.settings import Memory, Training
from aanets_plugin.experiments.variants import CONTROLS, VARIANTS, Shared

PLAIN, LEARNED, FIXED, JOINT = "plain", "learned", "fixed", "joint"
"""The names of the arms in the names of their folders."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a method, on the plain network or with AANets.

    What is None is as in the other arms.
    """

    method: Method
    aanets: AANetConfig | None = None
    memory: Memory | None = None
    training: Training | None = None
    backbone: Backbone | None = None
    label: str | None = None
    """The name in reports. Default: that of the kind of run, such as "AANets, learned α"."""


def arms_of(
    method: Method,
    aanets: AANetConfig | None,
    *,
    fixed_alpha: bool = False,
    upper_bound: bool = False,
) -> dict[str, Arm]:
    """The usual arms of a comparison by name. The arm "plain" is `method` without AANets.

    Args:
        aanets: adds the arm "learned" with these options; None: the plain network alone.
        fixed_alpha: adds the arm "fixed", in which α keeps its initial weights.
        upper_bound: adds the arm "joint", which trains on all data seen so far.
    """
    arms = {PLAIN: Arm(method)}
    if aanets is not None:
        arms[LEARNED] = Arm(method, aanets)
    if aanets is not None and fixed_alpha:
        arms[FIXED] = Arm(method, replace(aanets, lr=0.0))
    if upper_bound:
        arms[JOINT] = Arm(Joint())
    return arms


def control_arms(names: Sequence[str], method: Method, shared: Shared) -> dict[str, Arm]:
    """Fair controls by name: what else the cost of AANets could be spent on.

    "memory": the plain network with the exemplars that the additional parameters of AANets would
    buy; "compute": with as many more epochs as AANets cost; "wider": with as many parameters;
    "all_all": two branches that learn everything.
    """
    arms = {}
    for name in names:
        if name not in CONTROLS:
            raise ConfigurationError(f"control {name!r}: must be one of {', '.join(CONTROLS)}.")
        variant = VARIANTS[name]
        own = shared.settings(method, variant)
        backbone = own.backbone if variant.width != "equal" else None
        arms[name] = Arm(method, own.aanets, own.memory, own.training, backbone, variant.label)
    return arms


def same_start(first: Arm, arm: Arm) -> bool:
    """Whether both arms train the same network in the first phase."""
    ours, theirs = arm.method, first.method
    is_same_method = (ours.head_type, ours.schedule) == (theirs.head_type, theirs.schedule)
    return is_same_method and arm.backbone is first.backbone
