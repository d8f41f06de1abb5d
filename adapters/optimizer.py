"""A host's optimizer, kept in step with a model whose parameters change between phases.

The user's parameter groups stay as they are, in number and order: schedulers and Avalanche's own
bookkeeping count them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from aanets_plugin.scaling import scaled_layers

Parameters = Mapping[str, nn.Parameter]


def follow_parameters(optimizer: Optimizer, before: Parameters, after: Parameters) -> None:
    """Put parameters that appeared into the group of those they came from, drop those that went.

    What `before` did not have in the optimizer is left for Avalanche to place.
    """
    old = {id(parameter): name for name, parameter in before.items()}
    kept = set(map(id, after.values()))
    home: dict[str, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        members = group["params"]
        home.update((old[id(member)], members) for member in members if id(member) in old)
        for gone in [m for m in members if id(m) in old and id(m) not in kept]:
            optimizer.state.pop(gone, None)
        members[:] = [m for m in members if id(m) not in old or id(m) in kept]
    present = {id(member) for group in optimizer.param_groups for member in group["params"]}
    for name, parameter in after.items():
        origin = next((origin for origin in _origins(name) if origin in home), None)
        if id(parameter) not in present and origin is not None:
            home[origin].append(parameter)


def _origins(name: str) -> Iterator[str]:
    """What a parameter may have been called before the model changed its state, likeliest first."""
    yield name
    weight = re.sub(r"\bphi$", "weight", name)
    yield weight
    yield re.sub(r"\.branches\.\d+\.", ".branches.0.", weight)
    yield re.sub(r"\.branches\.\d+\.", ".", weight)
    yield re.sub(r"\bweight$", "phi", name)


def spare_decay(optimizer: Optimizer, phi: Sequence[nn.Parameter]) -> Callable[[], None]:
    """Take weight decay off φ for one step; the function that comes back restores the groups.

    Decay would pull φ to 0 and with it the stable branch, for a reason that is not in the loss. A
    group that came to stay would be one too many for the schedulers of current torch.
    """
    groups = optimizer.param_groups
    spared = set(map(id, phi))
    members = [group["params"] for group in groups]
    extra: list[dict[str, Any]] = []
    for group in groups:
        mine = [p for p in group["params"] if id(p) in spared] if group.get("weight_decay") else []
        if mine:
            group["params"] = [p for p in group["params"] if id(p) not in spared]
            extra.append({**group, "params": mine, "weight_decay": 0.0})
    groups.extend(extra)

    def restore() -> None:
        del groups[len(members) :]
        for group, params in zip(groups, members, strict=True):
            group["params"] = params

    return restore


class PhiWithoutDecay:
    """While this stands, no optimizer's step decays a φ of `model`; `remove` ends it."""

    def __init__(self, model: nn.Module) -> None:
        self.phi = [layer.phi for layer in scaled_layers(model)]
        self._restore: list[Callable[[], None]] = []
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        self._restore.append(spare_decay(optimizer, self.phi))

    def _after(self, *_: Any) -> None:
        self._restore.pop()()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
