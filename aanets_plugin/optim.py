"""Parameter groups for the lower level's optimizer."""

from __future__ import annotations

from typing import Any

from torch import nn

from aanets_plugin.scaling import scaled_layers


def parameter_groups(
    model: nn.Module, lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """What the lower level learns (Eq. 7) as optimizer groups, φ without weight decay.

    Decay would pull φ to 0 and with it the stable branch, for a reason that is not in the loss.

    Example:
        >>> optimizer = torch.optim.SGD(
        ...     parameter_groups(model, lr=0.1, weight_decay=5e-4), momentum=0.9
        ... )
    """
    phi = [layer.phi for layer in scaled_layers(model) if layer.phi.requires_grad]
    known = set(map(id, phi))
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    options: dict[str, Any] = {} if lr is None else {"lr": lr}
    groups = [
        {"params": rest, "weight_decay": weight_decay, **options},
        {"params": phi, "weight_decay": 0.0, **options},
    ]
    return [group for group in groups if group["params"]]
