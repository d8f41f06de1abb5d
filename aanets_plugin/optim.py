"""Parameter groups for the optimizer of the lower level."""

from typing import Any

from torch import nn

from aanets_plugin.scaling import scaled_layers


def parameter_groups(
    model: nn.Module, lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return the learnable parameters as optimizer groups, with no weight decay on φ.

    Weight decay would pull φ, and with it the stable branch, towards 0. The right value without
    any training signal is 1.

    Example:
        >>> from torch.optim import SGD
        >>> from aanets_plugin import convert_to_aanet
        >>> from aanets_plugin.baselines import resnet20
        >>> groups = parameter_groups(convert_to_aanet(resnet20()), lr=0.1, weight_decay=5e-4)
        >>> [group["weight_decay"] for group in groups]
        [0.0005, 0.0]
        >>> optimizer = SGD(groups, momentum=0.9)
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
