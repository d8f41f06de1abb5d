"""A training that diverged is stopped, not continued with weights that are not numbers."""

from torch import nn

from aanets_plugin.checks import is_sharded
from aanets_plugin.errors import NonFiniteLossError


def check_finite_weights(model: nn.Module, phase: int, epoch: int) -> None:
    """Check that no parameter is NaN or infinite, as after a step with such a loss."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta or is_sharded(parameter):
            continue
        if not parameter.detach().isfinite().all():
            raise NonFiniteLossError(
                f"Phase {phase}, epoch {epoch}: {name} has values that are NaN or infinite, so the "
                f"training loss was. Lower the learning rate of the network, and go on from a "
                f"checkpoint before this epoch."
            )
