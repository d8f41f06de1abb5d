"""Parameter groups for the optimizer of the lower level."""

from typing import Any

from torch import nn

from aanets_plugin.checks import check_module, in_range
from aanets_plugin.scaling import scaled_layers


def parameter_groups(
    model: nn.Module, lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return the learnable parameters as optimizer groups, with no weight decay on δ = φ − 1.

    One group for all parameters is right too: weight decay then pulls φ to 1, and with it the
    stable branch to θ_base. With these groups, φ follows the gradient of the loss alone.

    Examples:
        >>> from torch.optim import SGD
        >>> from aanets_plugin import convert_to_aanet
        >>> from aanets_plugin.baselines import resnet20
        >>> groups = parameter_groups(convert_to_aanet(resnet20()), lr=0.1, weight_decay=5e-4)
        >>> [group["weight_decay"] for group in groups]
        [0.0005, 0.0]
        >>> optimizer = SGD(groups, momentum=0.9)
    """
    check_module(model)
    options: dict[str, Any] = {} if lr is None else {"lr": in_range(lr, "lr", 0)}
    weight_decay = in_range(weight_decay, "weight_decay", 0)
    delta = [layer.delta for layer in scaled_layers(model) if layer.delta.requires_grad]
    known = set(map(id, delta))
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    groups = [
        {"params": rest, "weight_decay": weight_decay, **options},
        {"params": delta, "weight_decay": 0.0, **options},
    ]
    return [group for group in groups if group["params"]]
