"""Images as people have them: PIL images, paths, arrays and tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from aanets_plugin.errors import ConfigurationError

OneImage = Image.Image | str | Path | np.ndarray | Tensor
Images = OneImage | Sequence[OneImage]
_CHANNELS = (1, 3, 4)


def as_images(images: Images) -> list[OneImage]:
    """The images one by one. A batch is an array [N, H, W, C] or a tensor [N, C, H, W]."""
    if isinstance(images, (str, Path, Image.Image)):
        return [images]
    if isinstance(images, (np.ndarray, Tensor)):
        return list(images) if images.ndim == 4 else [images]
    return list(images)


def network_input(
    image: OneImage, transform: Callable[[Any], Tensor], shape: tuple[int, int, int]
) -> Tensor:
    """The image as the network's input. It is resized if the transform alone does not fit it."""
    opened = open_image(image).convert("L" if shape[0] == 1 else "RGB")
    tensor = transform(opened)
    if tuple(tensor.shape) != shape:
        _, height, width = shape
        tensor = transform(opened.resize((width, height), Image.Resampling.BILINEAR))
    if tuple(tensor.shape) != shape:
        raise ConfigurationError(
            f"The transform gives {list(tensor.shape)}: must be {list(shape)}, the input of the "
            f"network. Pass the transform of the run's test images."
        )
    return tensor


def open_image(image: OneImage) -> Image.Image:
    """Return a PIL image."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, (str, Path)):
        try:
            opened: Image.Image = Image.open(image)
            opened.load()  # and close the file
            return opened
        except OSError as error:
            raise ConfigurationError(
                f"{str(image)!r} cannot be read as an image ({error}). Name image files."
            ) from error
    if isinstance(image, Tensor):
        array = image.detach().cpu().numpy()
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    elif isinstance(image, np.ndarray):
        array = image
    else:
        raise ConfigurationError(
            f"{type(image).__name__} is not an image. Pass PIL images, paths, arrays or tensors."
        )
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in _CHANNELS:
        raise ConfigurationError(
            f"An image has the shape {list(image.shape)}: must be [height, width, channels] as an "
            f"array or [channels, height, width] as a tensor, with 1, 3 or 4 channels."
        )
    if array.dtype != np.uint8:
        array = array.astype(np.float64)
        if not (array.min() >= 0 and array.max() <= 1):
            raise ConfigurationError(
                f"An image has values from {array.min():g} to {array.max():g}: must be from 0 to "
                f"1, or uint8. Pass images that are not normalised; the predictor does it."
            )
        array = np.round(array * 255).astype(np.uint8)
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
