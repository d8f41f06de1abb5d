"""Updates of a host's optimizer when the parameters of the model change between phases.

The number and order of the user's parameter groups never change, because learning rate schedulers
and Avalanche rely on them.
"""

import re
from collections.abc import Iterator, Mapping

from torch import nn
from torch.optim import Optimizer

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
    weight = re.sub(r"\bdelta$", "weight", name)
    yield weight
    yield re.sub(r"\.branches\.\d+\.", ".branches.0.", weight)
    yield re.sub(r"\.branches\.\d+\.", ".", weight)
    yield re.sub(r"\bweight$", "delta", name)
