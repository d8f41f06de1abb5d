"""The ranks of a process group: sums over them, and an error on one that stops them all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor

from aanets_plugin.errors import ProcessError

_LENGTH = 200  # bytes of an error message that the other ranks get


def several_ranks() -> bool:
    """Whether this process is one of several in a process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Add up a tensor of all ranks, in place."""
    if several_ranks():
        dist.all_reduce(tensor)
    return tensor


@contextmanager
def failing_together(device: torch.device) -> Iterator[None]:
    """If the block raises an error on one rank, the others raise a `ProcessError` at its end.

    Otherwise they would wait for that rank until the timeout of the process group. All ranks must
    run the block, and it must not wait for other ranks itself.
    """
    if not several_ranks():
        yield
        return
    try:
        yield
    except Exception as error:
        with suppress(RuntimeError):  # the others have ended, and need not be told
            _exchange(f"{type(error).__name__}: {error}", device)
        raise
    for rank, problem in enumerate(_exchange("", device)):
        if problem:
            raise ProcessError(
                f"rank {rank} of {dist.get_world_size()} has failed ({problem}), so rank "
                f"{dist.get_rank()} stops too."
            )


def _exchange(text: str, device: torch.device) -> list[str]:
    """Return the texts of all ranks."""
    own = text.encode()[:_LENGTH]
    texts = torch.zeros(dist.get_world_size(), _LENGTH, dtype=torch.uint8, device=device)
    texts[dist.get_rank(), : len(own)] = torch.tensor(list(own), dtype=torch.uint8)
    sum_over_ranks(texts)
    if not texts.any():  # read the rest only if there is something
        return []
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in texts.tolist()]
