"""Strategies that begin every experience with a fresh network, such as GDumb.

They put back the network that they copied before the first experience, which had no stable branch.
What such a strategy starts anew is the part that learns freely: the plastic branches and the head.
The stable side is what AANets add to it, so it is put in again as it was when θ_base was frozen.
"""

from __future__ import annotations

from torch import Tensor, nn

from aanets_plugin.convert import STEM_RULE, freeze_base
from aanets_plugin.levels import AdaptiveLevel, Branches


def stable_state(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the stable branches, of the stem that learns as they do, and of α."""
    prefixes: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, Branches):
            prefixes += [f"{name}.branches.{b}." for b in range(1, len(module.branches))]
            prefixes += [f"{name}.alpha"] if isinstance(module, AdaptiveLevel) else []
        elif module.__dict__.get(STEM_RULE, "all") != "all":
            prefixes.append(f"{name}.")
    state = model.state_dict()
    return {k: v.clone() for k, v in state.items() if k.startswith(tuple(prefixes))}


def add_stable_side(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Give a model in its base phase the stable side that `state` was taken from."""
    freeze_base(model)
    model.load_state_dict({**model.state_dict(), **state})
