"""Class-balanced subsets.

Labels are read as a dataset stores them, before any `target_transform`. If those are not the
classes to balance, pass `targets=`. Indices are returned as int64 tensors on the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from aanets_plugin.checks import positive
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.random_state import random_state_kept

# torchvision and Avalanche use the first two, some torchvision datasets the third, Continuum the
# last.
_LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "_y", "y")


class MapStyle(Protocol):
    """Anything with a length and items: a tensor, a list, an array or a map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def targets_of(dataset: MapStyle | Dataset[Any]) -> torch.Tensor:
    """Return the class label of every sample without loading the samples.

    Args:
        dataset: The labels themselves (a tensor, list or array of integers), or a dataset that has
            them in `.targets`, `.labels`, `._labels`, `._y`, `.y` or `.tensors[-1]`. `Subset` and
            `ConcatDataset` are resolved.

    Examples:
        >>> from torch.utils.data import Subset, TensorDataset
        >>> data = TensorDataset(torch.zeros(4, 3), torch.tensor([5, 6, 5, 7]))
        >>> targets_of(Subset(data, [3, 0]))
        tensor([7, 5])
    """
    if isinstance(dataset, (torch.Tensor, list, tuple, range)) or hasattr(dataset, "__array__"):
        return integers(dataset, "targets")
    refused = []
    for place, value in _label_places(dataset):
        try:
            labels = integers(value, place)
            check_length(labels, dataset, place)
        except ConfigurationError as error:
            refused.append(str(error))
        else:
            return labels
    if isinstance(dataset, Subset):
        return targets_of(dataset.dataset)[integers(dataset.indices, "Subset.indices")]
    if isinstance(dataset, ConcatDataset):
        return torch.cat([targets_of(part) for part in dataset.datasets])
    # A sequence that is not a Dataset may be labels. Look at the first item only, since the items
    # may be images.
    if isinstance(dataset, Sequence) and not isinstance(dataset, (Dataset, str, bytes)):
        try:
            integers([dataset[0]] if len(dataset) else [], "its first item")
        except ConfigurationError as error:
            refused.append(str(error))
        else:
            return integers(dataset, "targets")
    looked = ", ".join(f".{name}" for name in _LABEL_ATTRIBUTES)
    raise ConfigurationError(
        f"A {type(dataset).__name__} has no class labels in {looked}, .tensors[-1], nor inside "
        "Subset or ConcatDataset. Pass a dataset that has them, such as TensorDataset(x, y), or "
        "the labels, one integer per sample, as targets=."
        + "".join(f"\n  - {reason}" for reason in refused)
    )


def balanced_indices(
    targets: MapStyle | Dataset[Any],
    per_class: int | None = None,
    generator: torch.Generator | None = None,
    *,
    min_per_class: int | None = None,
) -> torch.Tensor:
    """Draw a random subset with the same number of samples of every class; returns its indices.

    Args:
        targets: Labels, or a dataset that `targets_of` understands.
        per_class: Samples of each class, drawn without replacement. Default: as many as the
            smallest class has.
        generator: Source of randomness. Default: a generator of its own, seeded with
            `torch.initial_seed()`. The global random state does not change, and the same labels
            give the same draw.
        min_per_class: Draw at least this many samples of each class. A class that has fewer than
            are drawn gives its samples more than once, with a warning. So all classes have the same
            weight, and one small class does not make the whole draw small. Default: no repetition.

    Examples:
        >>> targets = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
        >>> chosen = balanced_indices(targets, generator=torch.Generator().manual_seed(0))
        >>> targets[chosen].bincount()
        tensor([2, 2, 2])
    """
    if per_class is not None:
        per_class = positive(per_class, "per_class")
    if min_per_class is not None:
        min_per_class = positive(min_per_class, "min_per_class")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ConfigurationError(f"generator={generator!r:.80}: must be a torch.Generator.")
    if generator is None:
        generator = torch.Generator().manual_seed(torch.initial_seed())
    labels = targets_of(targets)
    if len(labels) == 0:
        raise ConfigurationError(
            "targets is empty: must have at least one label. Pass a dataset that has samples."
        )
    classes, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    smallest, largest = int(counts.min()), int(counts.max())
    if per_class is None:
        per_class = max(smallest, min(min_per_class or 1, largest))
        if min_per_class is None and smallest == 1 and largest >= 10:
            warnings.warn(
                f"Class {int(classes[counts.argmin()])} has one sample, so one of every class is "
                f"drawn. Pass min_per_class to draw more, and its sample more than once.",
                stacklevel=2,
            )
    elif min_per_class is None:
        check_counts(classes, counts, per_class, "per_class")
    if per_class > smallest:
        warnings.warn(
            f"{int((counts < per_class).sum())} of {len(classes)} classes have fewer than "
            f"{per_class} samples. Theirs are drawn more than once.",
            stacklevel=2,
        )

    # A stable sort by class keeps the random order within each class. So the first `per_class`
    # entries of each class are a draw without replacement.
    order = permutation(len(labels), generator)
    by_class = order[inverse[order].sort(stable=True).indices]
    starts = counts.cumsum(0) - counts
    places = torch.arange(per_class) % counts.unsqueeze(1)
    chosen = by_class[starts.unsqueeze(1) + places].flatten()
    return chosen[permutation(len(chosen), generator)]


def balanced_subset(
    dataset: MapStyle | Dataset[Any],
    exemplars: MapStyle | Dataset[Any] | None = None,
    *,
    per_class: int | None = None,
    targets: MapStyle | None = None,
    exemplar_targets: MapStyle | None = None,
    generator: torch.Generator | None = None,
    min_per_class: int | None = None,
) -> Dataset[Any]:
    """Combine new data and exemplars into a shuffled dataset that is balanced over all classes.

    The result has the same number of samples of every class. Its labels are in `.targets`.

    Args:
        dataset: The new data, a map-style dataset.
        exemplars: The exemplars of the old classes, a dataset with items of the same form; None
            or empty before there are any. Leave it out if `dataset` contains them already;
            otherwise a sample may appear twice. Samples of a class that is in both parts are drawn
            from both together.
        per_class: Samples of each class. Default: as many as the smallest class has.
        targets: Labels of `dataset`, if `targets_of` does not find them.
        exemplar_targets: Labels of `exemplars`, if `targets_of` does not find them.
        generator: Source of randomness. Default: as in `balanced_indices`; the global random state
            does not change.
        min_per_class: As in `balanced_indices`, for data in which some class has very few samples.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> memory = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
        >>> new = TensorDataset(torch.zeros(50, 3), torch.full((50,), 2))
        >>> targets_of(balanced_subset(new, memory)).bincount()
        tensor([2, 2, 2])
    """
    if exemplars is None and exemplar_targets is not None:
        raise ConfigurationError(
            "exemplar_targets was given without exemplars. Pass exemplars too, or leave "
            "exemplar_targets out."
        )
    parts: list[Any] = []
    labels: list[torch.Tensor] = []
    for name, part, given in (
        ("exemplars", exemplars, exemplar_targets),
        ("dataset", dataset, targets),
    ):
        if name == "exemplars" and (part is None or (isinstance(part, Mapping) and not part)):
            continue
        part_labels = _labels_of_part(name, part, given)
        if len(part_labels):
            parts.append(part)
            labels.append(part_labels)
    if not parts:
        raise ConfigurationError(
            "dataset and exemplars are empty: must have a sample. Pass data that has samples."
        )
    if len(parts) == 2:
        _check_same_form(*parts)
    pooled = torch.cat(labels)
    chosen = balanced_indices(pooled, per_class, generator, min_per_class=min_per_class)
    whole: Dataset[Any] = parts[0] if len(parts) == 1 else ConcatDataset(parts)
    subset = Subset(whole, chosen.tolist())
    # targets_of cannot find labels that were passed in.
    subset.targets = pooled[chosen]  # type: ignore[attr-defined]
    return subset


def permutation(n: int, generator: torch.Generator | None) -> torch.Tensor:
    """A random order of `n` items on the CPU, drawn on the generator's device."""
    device = "cpu" if generator is None else generator.device
    return torch.randperm(n, generator=generator, device=device).cpu()


def _label_places(dataset: Any) -> Iterator[tuple[str, Any]]:
    for name in _LABEL_ATTRIBUTES:
        value = getattr(dataset, name, None)
        if value is not None:
            yield f"{type(dataset).__name__}.{name}", value
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, (tuple, list)) and tensors:
        yield f"{type(dataset).__name__}.tensors[-1]", tensors[-1]


def integers(value: Any, name: str) -> torch.Tensor:
    """Return a tensor, array or sequence of integers as a one-dimensional int64 tensor (a copy)."""
    allowed = "must be a one-dimensional tensor, list or array with one integer per sample"
    if isinstance(value, torch.Tensor):
        vector = value.detach()
    else:
        try:
            vector = _tensor(value)
        except (TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            raise ConfigurationError(
                f"{name} is a {type(value).__name__} that cannot be converted to integers "
                f"({error}): {allowed}."
            ) from error
    if vector.ndim != 1:
        raise ConfigurationError(
            f"{name} has shape {tuple(vector.shape)}: {allowed}. Convert one-hot labels with "
            ".argmax(1)."
        )
    # An empty list becomes a float tensor.
    fractional = vector.is_floating_point() or vector.is_complex() or vector.dtype == torch.bool
    if len(vector) and fractional:
        raise ConfigurationError(
            f"{name} has dtype {vector.dtype}: {allowed}. Convert class labels with .long()."
        )
    return vector.to("cpu", torch.int64, copy=True)


def _tensor(value: Any) -> torch.Tensor:
    if not hasattr(value, "__array__"):
        return torch.tensor(list(value))
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, KeyError):
        # Reversed views, foreign byte orders, columns of data frames.
        return torch.tensor(value.tolist())


def check_length(labels: torch.Tensor, dataset: Any, name: str) -> None:
    """Refuse labels that are not one per sample. A dataset without a length passes."""
    if hasattr(dataset, "__len__") and len(labels) != len(dataset):
        raise ConfigurationError(
            f"{name} has {len(labels)} labels, but the {type(dataset).__name__} has {len(dataset)} "
            f"samples. Pass one label per sample."
        )


def _labels_of_part(name: str, part: Any, given: Any) -> torch.Tensor:
    argument = "targets" if name == "dataset" else "exemplar_targets"
    mapped = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    if isinstance(part, IterableDataset) or not mapped:
        raise ConfigurationError(
            f"{name} is a {type(part).__name__}: must be a map-style dataset, with __len__ and "
            "__getitem__. Collect the samples of an iterable dataset in a list, or pass the "
            ".dataset of a loader."
        )
    if given is None:
        arrays = part if isinstance(part, (tuple, list)) else [part]
        if any(len(getattr(array, "shape", ())) > 1 for array in arrays):
            raise ConfigurationError(
                f"{name} is a {type(part).__name__} of data without class labels: must be a "
                f"dataset. Pass torch.utils.data.TensorDataset(x, y) or a dataset with your "
                f"transforms."
            )
        try:
            labels = targets_of(part)
        except ConfigurationError as error:
            message = str(error).replace("as targets=", f"as {argument}=")
            raise ConfigurationError(f"{name}: {message}") from None
        check_length(labels, part, name)
        return labels
    labels = targets_of(given)
    check_length(labels, part, argument)
    return labels


def _check_same_form(exemplars: Any, dataset: Any) -> None:
    """Compare the first items of the two parts, which are to be collated into one batch."""
    with random_state_kept():  # an item may be augmented
        forms = [_form(part[0]) for part in (exemplars, dataset)]
    if forms[0] != forms[1]:
        raise ConfigurationError(
            f"The items of exemplars are {forms[0]} and those of dataset {forms[1]}: must have the "
            f"same form. Wrap one of them in a dataset whose items are like the other's."
        )


def _form(item: Any) -> str:
    """Describe an item: `(·, ·)` for a pair, `{'x': ·}` for a dict, `·` for anything else."""
    if isinstance(item, Mapping):
        entries = sorted(f"{key!r}: {_form(value)}" for key, value in item.items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(item, (tuple, list)):
        return "(" + ", ".join(map(_form, item)) + ")"
    return "·"


def check_counts(classes: torch.Tensor, counts: torch.Tensor, wanted: int, name: str) -> None:
    """Refuse `wanted` samples per class if a class has fewer; `name` is the option's."""
    short = (counts < wanted).nonzero().flatten()
    if len(short):
        worst = short[counts[short].argmin()]
        fewest = int(counts[worst])
        raise ConfigurationError(
            f"{name}={wanted}: must be ≤ {fewest}, since class {int(classes[worst])} has {fewest} "
            f"samples ({len(short)} of {len(classes)} classes have too few). Lower {name}, or pass "
            f"more samples."
        )
