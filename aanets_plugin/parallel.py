"""Wrappers of torch.distributed, which must not be older than the parameters of the model.

The end of the base phase adds parameters. A DistributedDataParallel from before does not know them,
so that each rank would train its own.
"""

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from aanets_plugin.checks import is_sharded
from aanets_plugin.errors import PhaseError
from aanets_plugin.ranks import several_ranks

_WRAP_AGAIN = (
    "Wrap the model again in every phase: after begin_phase(), when the optimizer is built."
)
_checked: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # wrappers, since a phase began


class WrapperCheck:
    """Forward pre-hook of a model: refuses a DistributedDataParallel around other parameters."""

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Raise PhaseError if the wrapper around the module is older than its parameters."""
        if _is_outdated():
            raise PhaseError(
                f"The DistributedDataParallel around the {type(module).__name__} is older than "
                f"some of its parameters, which the ranks would train apart. {_WRAP_AGAIN}"
            )


def _is_outdated() -> bool:
    """Whether the DistributedDataParallel that runs now has other parameters than its model."""
    wrapper: Any = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if wrapper is None or wrapper in _checked:
        return False
    known, ignored = wrapper._module_parameters, wrapper.parameters_to_ignore
    now = [p for name, p in wrapper.module.named_parameters() if name not in ignored]
    if set(map(id, known)) != set(map(id, now)):
        return True
    _checked.add(wrapper)
    return False


def watch_wrapper(model: nn.Module) -> RemovableHandle | None:
    """Let the forward of `model` refuse an outdated DistributedDataParallel, if there are ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    _checked.clear()
    # torch.compile calls the function when it compiles, as it does anew for new parameters. This
    # imports the compiler, so it is not a decorator.
    torch.compiler.assume_constant_result(_is_outdated)  # type: ignore[no-untyped-call]
    return model.register_forward_pre_hook(WrapperCheck())


def check_same_weights(model: nn.Module) -> None:
    """Check that all ranks have the same parameters."""
    parameters = list(model.parameters())
    if not several_ranks() or not parameters or any(map(is_sharded, parameters)):
        return
    with torch.no_grad():
        sums = torch.stack([p.double().sum() for p in parameters])
        bounds = torch.cat([sums, -sums])
        dist.all_reduce(bounds, dist.ReduceOp.MAX)
    largest, smallest = bounds.chunk(2)
    if not torch.equal(largest, -smallest):
        raise PhaseError(
            f"The ranks have different parameters of the {type(model).__name__}. {_WRAP_AGAIN}"
        )
