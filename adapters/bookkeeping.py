"""What methods such as EWC keep for each parameter, when the parameters of the network change."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

Parameters = Mapping[str, nn.Parameter]


def carry_over(
    values: Mapping[str, Tensor],
    before: Parameters,
    after: Parameters,
    new: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Return the values of the parameters of `before`, by name, for those of `after`.

    A parameter that is in both keeps its value, under its new name. One that is gone loses it. For
    `HostAdapter.parameters_changed`.

    Args:
        values: A tensor for each parameter, or for some of them, by name.
        before: The parameters that there were.
        after: The parameters that there are.
        new: Gives the value of a new parameter. `torch.zeros_like` for importances, `torch.clone`
            for copies of the parameters.
    """
    names = {id(parameter): name for name, parameter in before.items()}
    carried = {}
    for name, parameter in after.items():
        old = names.get(id(parameter))
        if old is None and name in before and before[name].shape == parameter.shape:
            old = name  # replaced by one like it
        if old is None:
            carried[name] = new(parameter.detach())
        elif old in values:
            carried[name] = values[old]
    return carried
