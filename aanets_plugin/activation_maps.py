"""grad_cam: where in an image each branch of a level looks. Needs the package grad-cam."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from aanets_plugin.alpha_gradient import unwrapped
from aanets_plugin.branch_results import branch_names
from aanets_plugin.convert import require_converted
from aanets_plugin.default_loss import logits_of
from aanets_plugin.errors import ConfigurationError, UnsupportedModelError
from aanets_plugin.levels import AdaptiveLevel, named_levels
from aanets_plugin.plot_style import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def grad_cam(
    model: nn.Module,
    images: Tensor,
    classes: Sequence[int] | None = None,
    *,
    level: int | str = -1,
    logits_of: Callable[[Any], Tensor] = logits_of,
) -> dict[str, Tensor]:
    """Return Grad-CAM maps of each branch of a level and of its aggregated output.

    The maps [images, height, width] have values from 0 to 1 and the size of the images. Their names
    are "plastic", "stable" and "aggregated" (the paper's Figure 5). A model in its base phase has
    "aggregated" alone. The model does not change, its gradients included.

    Args:
        model: A converted model.
        images: A batch as the model takes it, [images, channels, height, width].
        classes: The class of each image, as a column of the logits. Default: those predicted.
        level: The level, by its number or its name. Default: the last one.
        logits_of: Returns the logits in the model's output. Default: the output itself, its entry
            "logits", or the outputs of a list of heads side by side.
    """
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    if classes is not None and len(classes) != len(images):
        raise ConfigurationError(
            f"classes has {len(classes)} entries for {len(images)} images: must have one for each."
        )
    require_converted(unwrapped(model), "grad_cam")
    # A copy in which nothing but the images needs a gradient.
    network = _Logits(copy.deepcopy(unwrapped(model)), logits_of).requires_grad_(False)
    target = _level_of(network.model, level)
    places: dict[str, nn.Module] = {}
    if len(target.branches) > 1:
        names = branch_names(len(target.branches))
        places = dict(zip(names, target.branches, strict=True))
    places["aggregated"] = target
    targets = None if classes is None else [ClassifierOutputTarget(int(c)) for c in classes]
    maps = {}
    for name, place in places.items():
        with GradCAM(network, [place], reshape_transform=_feature_map) as cam:
            inputs = images.detach().clone().requires_grad_()
            maps[name] = torch.from_numpy(cam(inputs, targets))
    return maps


def plot_grad_cam(
    images: Tensor,
    maps: Mapping[str, Tensor],
    path: str | PathLike[str] | None = None,
    *,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw each image beside its maps, one row per image.

    Args:
        images: The images with values from 0 to 1, [images, channels, height, width]: without the
            normalization that the model needs.
        maps: The result of `grad_cam`, or maps of several models by name.
        path: If given, the figure is saved there.
        titles: A text for each row, such as the name of the class.
    """
    pixels = images.detach().cpu().permute(0, 2, 3, 1).clamp(0, 1)
    if pixels.shape[-1] == 1:
        pixels = pixels.expand(*pixels.shape[:-1], 3)
    columns = 1 + len(maps)
    figure, axes = new_figure(1.6 * columns, 1.7 * len(pixels), rows=len(pixels), columns=columns)
    for row, image in enumerate(pixels):
        panels = axes[row * columns : (row + 1) * columns]
        for panel, (name, of_images) in zip(panels, [("image", None), *maps.items()], strict=True):
            panel.imshow(image.numpy())
            if of_images is not None:
                panel.imshow(of_images[row].numpy(), cmap="jet", alpha=0.45, vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
            if row == 0:
                panel.set_title(name)
        if titles is not None:
            panels[0].set_ylabel(titles[row])
    if path is not None:
        save(figure, path)
    return figure


class _Logits(nn.Module):
    """The model with its logits as the output."""

    def __init__(self, model: nn.Module, logits_of: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.logits_of = logits_of

    def forward(self, x: Tensor) -> Tensor:
        return self.logits_of(self.model(x))


def _level_of(model: nn.Module, level: int | str) -> AdaptiveLevel:
    named = named_levels(model)
    names = list(named)
    try:
        return named[level if isinstance(level, str) else names[level]]
    except (KeyError, IndexError):
        raise ConfigurationError(
            f"level={level!r}: must be one of {names}, or a number from 0 to {len(names) - 1}."
        ) from None


def _feature_map(output: Any) -> Tensor:
    if not isinstance(output, Tensor) or output.dim() != 4:
        raise UnsupportedModelError(
            f"grad_cam: a branch returns a {type(output).__name__}, must be a tensor "
            f"[batch, channels, height, width]. Choose another level."
        )
    return output
