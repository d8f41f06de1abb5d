"""Updates of a host's optimizer when the parameters of the model change between phases.

The number and order of the user's parameter groups never change, because learning rate schedulers
and Avalanche rely on them.
"""

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
    """Remove parameters that no longer exist, and add new ones to the group of their origin.

    Parameters whose origin is not in the optimizer are left to Avalanche.
    """
    old = {id(parameter): name for name, parameter in before.items()}
    kept = set(map(id, after.values()))
    group_of: dict[str, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        members = group["params"]
        group_of.update((old[id(member)], members) for member in members if id(member) in old)
        for removed in [m for m in members if id(m) in old and id(m) not in kept]:
            optimizer.state.pop(removed, None)
        members[:] = [m for m in members if id(m) not in old or id(m) in kept]
    present = {id(member) for group in optimizer.param_groups for member in group["params"]}
    for name, parameter in after.items():
        origin = next((origin for origin in _origins(name) if origin in group_of), None)
        if id(parameter) not in present and origin is not None:
            group_of[origin].append(parameter)


def _origins(name: str) -> Iterator[str]:
    """Yield possible earlier names of a parameter, the most likely first."""
    yield name
    weight = re.sub(r"\bphi$", "weight", name)
    yield weight
    yield re.sub(r"\.branches\.\d+\.", ".branches.0.", weight)
    yield re.sub(r"\.branches\.\d+\.", ".", weight)
    yield re.sub(r"\bweight$", "phi", name)


def spare_decay(optimizer: Optimizer, phi: Sequence[nn.Parameter]) -> Callable[[], None]:
    """Exclude φ from weight decay for one step; returns a function that restores the groups.

    Weight decay would shrink φ, and with it the stable branch, towards 0. A permanent extra group
    would break the schedulers of current torch, which rely on the number of groups.
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
    """Keeps weight decay off φ of `model` in the steps of all optimizers, until it is removed.

    `steps` is the number of these steps.
    """

    def __init__(self, model: nn.Module) -> None:
        self.phi = [layer.phi for layer in scaled_layers(model)]
        self.steps = 0
        self._restore: list[Callable[[], None]] = []
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        self._restore.append(spare_decay(optimizer, self.phi))

    def _after(self, *_: Any) -> None:
        self.steps += 1
        self._restore.pop()()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
