"""What the processes of one run share: BatchNorm's statistics, and that one of them has failed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

from aanets_plugin.errors import ProcessError


def share_statistics(backbone: nn.Module, accelerator: Accelerator) -> nn.Module:
    """Let BatchNorm see the whole batch, not the part of one process. torch can on GPUs alone."""
    if accelerator.num_processes == 1 or accelerator.device.type != "cuda":
        return backbone
    convert: Callable[[nn.Module], nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm
    return convert(backbone)


@contextmanager
def telling_of_failures(accelerator: Accelerator) -> Iterator[None]:
    """A `ProcessError` that says how to go on when another process has failed or ended."""
    resume = (
        "Resume the run (resume=True, on the command line --resume) to go on from its last epoch."
    )
    try:
        yield
    except ProcessError as error:
        raise ProcessError(f"{error} {resume}") from None
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not _is_lost_connection(error):
            raise
        raise ProcessError(
            f"process {accelerator.process_index} of {accelerator.num_processes} has lost the "
            f"connection to another one, which has failed or was ended: see its message. {resume}"
        ) from error


def _is_lost_connection(error: RuntimeError) -> bool:
    words = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in words or "nccl" in words
