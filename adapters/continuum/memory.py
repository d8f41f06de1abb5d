"""Continuum's rehearsal memory: herding, saved state, and images that a method has learned."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from continuum.rehearsal import RehearsalMemory
from PIL import Image
from torch import Tensor

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.files import replacing
from aanets_plugin.herding import herd_classes

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def rehearsal_memory(
    classes: int, *, per_class: int | None = None, total: int | None = None
) -> RehearsalMemory:
    """An empty memory of Continuum that chooses exemplars by herding, as in iCaRL.

    It holds `per_class` exemplars of each class, or `total` of all together. `classes` is the
    number of classes after the last phase.
    """
    size = total if per_class is None else per_class * classes
    return RehearsalMemory(
        size, herd_samples, fixed_memory=per_class is not None, nb_total_classes=classes
    )


def herd_samples(
    x: np.ndarray, y: np.ndarray, t: np.ndarray, z: Tensor, nb_per_class: int
) -> Arrays:
    """A herding method for Continuum's RehearsalMemory; `z` are the features of the samples.

    A class with fewer than `nb_per_class` samples keeps all of them.
    """
    chosen = herd_classes(z, y, nb_per_class, at_most=True)
    order = torch.cat(list(chosen.values())).numpy()
    return x[order], y[order], t[order]


def with_samples(taskset: Any, samples: Arrays) -> Any:
    """A copy of `taskset` that has these samples and the same transforms."""
    replaced = copy.copy(taskset)
    replaced._x, replaced._y, replaced._t = samples
    return replaced


def state_of(memory: RehearsalMemory) -> dict[str, Any]:
    """The contents of the memory as tensors and strings, for a checkpoint."""
    x, y, t = memory.get()
    paths = x.dtype.kind in "UO"
    return {
        "x": [str(path) for path in x] if paths else torch.as_tensor(x),
        "y": torch.as_tensor(y),
        "t": torch.as_tensor(t),
    }


def restore(memory: RehearsalMemory, state: dict[str, Any]) -> None:
    """Fill the memory from the result of `state_of`."""
    counts = {name: len(state[name]) for name in ("x", "y", "t")}
    if len(set(counts.values())) != 1:
        raise ConfigurationError(f"the exemplars have {counts} entries: must be equally many.")
    x = state["x"]
    memory._x = np.array(x) if isinstance(x, list) else x.numpy()
    memory._y, memory._t = state["y"].numpy(), state["t"].numpy()
    memory.seen_classes = set(np.unique(memory._y))


def pixel_bounds(transforms: Any) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the normalisation in these transforms; 0 and 1 if none."""
    for transform in getattr(transforms, "transforms", [transforms]):
        if hasattr(transform, "mean") and hasattr(transform, "std"):
            mean, std = (torch.as_tensor(v).float() for v in (transform.mean, transform.std))
            return mean.reshape(-1, 1, 1), std.reshape(-1, 1, 1)
    return torch.zeros(1, 1, 1), torch.ones(1, 1, 1)


def put_images(
    memory: RehearsalMemory, rows: np.ndarray, images: Tensor, transforms: Any, folder: Path
) -> None:
    """Replace the images in these rows of the memory by `images`, given as network inputs.

    They are stored in the form of the others: as 8-bit arrays, or as image files in `folder`.
    """
    mean, std = pixel_bounds(transforms)
    bytes_ = ((images.cpu() * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)
    arrays = bytes_.permute(0, 2, 3, 1).numpy()
    assert memory._x is not None
    if memory._x.dtype.kind in "UO":
        folder.mkdir(parents=True, exist_ok=True)
        paths: list[str] = []
        for label, array in zip(memory._y[rows], arrays, strict=True):
            paths.append(str(folder / f"{label}-{len(paths)}.png"))
            with replacing(Path(paths[-1])) as temporary:
                Image.fromarray(array).save(temporary, format="PNG")
        x = memory._x.tolist()
        for row, path in zip(rows.tolist(), paths, strict=True):
            x[row] = path
        memory._x = np.array(x)
        return
    if arrays.shape[1:] != memory._x.shape[1:]:
        raise ConfigurationError(
            f"learned exemplars have the shape {arrays.shape[1:]}: must be {memory._x.shape[1:]}, "
            f"the shape of the stored images. Resize the images of the dataset itself, not in its "
            f"test transforms."
        )
    memory._x = memory._x.copy()
    memory._x[rows] = arrays
