"""The check that a network can have a paired stem.

A paired stem gives one batch for each branch, one after the other. The first stage splits them. So
nothing else may read what the stem gives, and the first stage must not read anything else.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.stages import common_parent


def check_paired_stem(model: nn.Module, stem: Sequence[str], first_stage: str) -> None:
    """Check that the output of the stem goes to the first stage, once, and to nothing else.

    A network whose forward cannot be traced is not checked.
    """
    path = common_parent([*stem, first_stage])
    prefix = f"{path}." if path else ""
    graph = _calls(model.get_submodule(path))
    if graph is None:
        return
    stage_calls = [n for n in graph.nodes if _is_in(n, first_stage.removeprefix(prefix))]
    if len(stage_calls) > 1:
        raise UnsupportedModelError(
            f"{first_stage} is called {len(stage_calls)} times, but only its first input comes "
            f"from the stem. Convert with stem='stable' or stem='plastic'."
        )
    reached = {n for n in graph.nodes if any(_is_in(n, s.removeprefix(prefix)) for s in stem)}
    for node in graph.nodes:  # in the order of the forward
        if node in stage_calls or not reached & {node, *node.all_input_nodes}:
            continue
        reached.add(node)
        if node.op == "output":
            raise UnsupportedModelError(
                f"The network gives out what its stem ({', '.join(stem)}) computes, which has one "
                f"batch for each branch if it is paired. Convert with stem='stable' or "
                f"stem='plastic', or leave the maps of the stem out of the output."
            )


def _is_in(node: fx.Node, name: str) -> bool:
    """Whether a node calls the module of this name, or one that contains it."""
    return node.op == "call_module" and f"{name}.".startswith(f"{node.target}.")


class _ShallowTracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _calls(module: nn.Module) -> fx.Graph | None:
    """Return the graph of the calls of submodules in a forward; None if it cannot be traced."""
    own: Any = copy.copy(module)  # the forward may set attributes
    own.__dict__["_buffers"] = {
        name: value if value is None else value.clone() for name, value in own._buffers.items()
    }
    try:
        return _ShallowTracer().trace(own)
    except Exception:  # the host's code, with values that have no shape
        return None
