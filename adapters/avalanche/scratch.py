"""Support for strategies that reset the network in every experience, such as GDumb.

They restore a copy of the network from before the first experience, which has no stable branch. The
reset applies to the plastic branches and the head. The stable branches, the stem that learns like
them, and α are copied to the reset network.
"""

from torch import Tensor, nn

from aanets_plugin.convert import STEM_RULE, freeze_base
from aanets_plugin.levels import AdaptiveLevel, Branches


def stable_state(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the stable branches, the stem that learns like them, and α."""
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
    """Freeze the base of a model and load the result of `stable_state`."""
    freeze_base(model)
    model.load_state_dict({**model.state_dict(), **state})
