"""Class-balanced subsets and herding.

Labels are read as a dataset stores them, before any `target_transform`. If those are not the
classes to balance, pass `targets=`. Indices are returned as int64 tensors on the CPU.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from aanets_plugin.checks import positive
from aanets_plugin.errors import ConfigurationError

# torchvision and Avalanche use the first two, some torchvision datasets the third, Continuum the
# last.
_LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "_y")


class MapStyle(Protocol):
    """Anything with a length and items: a tensor, a list, an array or a map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def targets_of(dataset: MapStyle | Dataset[Any]) -> torch.Tensor:
    """Return the class label of every sample without loading the samples.

    Args:
        dataset: The labels themselves (a tensor, list or array of integers), or a dataset that has
            them in `.targets`, `.labels`, `._labels`, `._y` or `.tensors[-1]`. `Subset` and
            `ConcatDataset` are resolved.

    Example:
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
        "Subset or ConcatDataset. Pass the labels, one integer per sample, as targets=."
        + "".join(f"\n  - {reason}" for reason in refused)
    )


def balanced_indices(
    targets: MapStyle | Dataset[Any],
    per_class: int | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw a random subset with the same number of samples of every class; returns its indices.

    Args:
        targets: Labels, or a dataset that `targets_of` understands.
        per_class: Samples of each class, drawn without replacement. Default: as many as the
            smallest class has.
        generator: Source of randomness. Default: torch's global generator.

    Example:
        >>> targets = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
        >>> chosen = balanced_indices(targets, generator=torch.Generator().manual_seed(0))
        >>> targets[chosen].bincount()
        tensor([2, 2, 2])
    """
    if per_class is not None:
        per_class = positive(per_class, "per_class")
    labels = targets_of(targets)
    if len(labels) == 0:
        raise ConfigurationError(
            "targets is empty: must have at least one label. Pass a dataset that has samples."
        )
    classes, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    if per_class is None:
        per_class = int(counts.min())
    else:
        _check_counts(classes, counts, per_class, "per_class")

    # A stable sort by class keeps the random order within each class. So the first `per_class`
    # entries of each class are a draw without replacement.
    order = permutation(len(labels), generator)
    by_class = order[inverse[order].sort(stable=True).indices]
    starts = counts.cumsum(0) - counts
    chosen = by_class[starts.unsqueeze(1) + torch.arange(per_class)].flatten()
    return chosen[permutation(len(chosen), generator)]


def balanced_subset(
    dataset: MapStyle | Dataset[Any],
    exemplars: MapStyle | Dataset[Any] | None = None,
    *,
    per_class: int | None = None,
    targets: MapStyle | None = None,
    exemplar_targets: MapStyle | None = None,
    generator: torch.Generator | None = None,
) -> Dataset[Any]:
    """Combine new data and exemplars into a shuffled dataset that is balanced over all classes.

    The result has the same number of samples of every class. Its labels are in `.targets`.

    Args:
        dataset: The new data, a map-style dataset.
        exemplars: The exemplars of the old classes. Leave it out if `dataset` contains them
            already; otherwise a sample may appear twice. Samples of a class that is in both parts
            are drawn from both together.
        per_class: Samples of each class. Default: as many as the smallest class has.
        targets: Labels of `dataset`, if `targets_of` does not find them.
        exemplar_targets: Labels of `exemplars`, if `targets_of` does not find them.
        generator: Source of randomness. Default: torch's global generator.

    Example:
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
    parts: list[Any] = [dataset]
    labels = [_labels_of_part("dataset", dataset, targets)]
    if exemplars is not None:
        parts.insert(0, exemplars)
        labels.insert(0, _labels_of_part("exemplars", exemplars, exemplar_targets))
    pooled = torch.cat(labels)
    chosen = balanced_indices(pooled, per_class, generator)
    whole: Any = dataset if exemplars is None else ConcatDataset(parts)
    subset = Subset(whole, chosen.tolist())
    # targets_of cannot find labels that were passed in.
    subset.targets = pooled[chosen]  # type: ignore[attr-defined]
    return subset


def herd(features: torch.Tensor, k: int) -> torch.Tensor:
    """Choose `k` exemplars of one class by herding (iCaRL, Rebuffi et al. 2017, Algorithm 4).

    Returns their row indices, best first. Each next exemplar is the one that brings the mean of
    the chosen features closest to the class mean. So the first m of k exemplars are what
    `herd(features, m)` returns. `features` are `[samples, dimensions]`, floating point, and are
    L2-normalized here. The arithmetic is float64 on the CPU.

    Example:
        >>> herd(torch.tensor([[0.0, 1.0], [3.0, 3.0], [2.0, 0.0]]), 2)
        tensor([1, 0])
    """
    check_features(features)
    k = positive(k, "k")
    if k > len(features):
        raise ConfigurationError(
            f"k={k}: must be ≤ {len(features)}, the number of samples. Lower k, or pass more "
            f"features."
        )
    return _herd(features, k)


def herd_classes(
    features: torch.Tensor, targets: MapStyle | Dataset[Any], k: int, *, at_most: bool = False
) -> dict[int, torch.Tensor]:
    """Apply `herd` to every class; returns a dict from class label to row indices, best first.

    A class with fewer than `k` samples is an error. With `at_most=True` all its samples are chosen.

    Example:
        >>> features = torch.eye(4)
        >>> {label: len(rows) for label, rows in herd_classes(features, [3, 7, 3, 7], 1).items()}
        {3: 1, 7: 1}
    """
    check_features(features)
    k = positive(k, "k")
    labels = targets_of(targets)
    check_length(labels, features, "targets")
    classes, counts = torch.unique(labels, return_counts=True)
    if not at_most:
        _check_counts(classes, counts, k, "k")
    rows_by_class = torch.split(labels.sort(stable=True).indices, counts.tolist())
    return {
        label: rows[_herd(features[rows.to(features.device)], min(k, len(rows)))]
        for label, rows in zip(classes.tolist(), rows_by_class, strict=True)
    }


def _herd(features: torch.Tensor, k: int) -> torch.Tensor:
    unit = features.detach().to("cpu", torch.float64)
    norms = unit.norm(dim=1, keepdim=True)
    unit = unit / norms.masked_fill(norms == 0, 1.0)
    mean = unit.mean(dim=0)
    # Step j minimizes ||mean - (total + f) / j||. Multiplied by j, squared, and without the terms
    # that do not depend on f, this is ||f||^2 - 2 f.(j mean - total): one matrix-vector product.
    # The squared norm is one, except for rows of zeros.
    squared = unit.square().sum(dim=1)
    total = torch.zeros_like(mean)
    chosen = torch.empty(k, dtype=torch.int64)
    for step in range(k):
        best = (squared - 2 * (unit @ ((step + 1) * mean - total))).argmin()
        chosen[step] = best
        total += unit[best]
        squared[best] = torch.inf
    return chosen


def permutation(n: int, generator: torch.Generator | None) -> torch.Tensor:
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
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
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
    if hasattr(dataset, "__len__") and len(labels) != len(dataset):
        raise ConfigurationError(
            f"{name} has {len(labels)} labels, but the {type(dataset).__name__} has {len(dataset)} "
            f"samples. Pass one label per sample."
        )


def _labels_of_part(name: str, part: Any, given: Any) -> torch.Tensor:
    mapped = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    if isinstance(part, IterableDataset) or not mapped:
        raise ConfigurationError(
            f"{name} is a {type(part).__name__}: must be a map-style dataset, with __len__ and "
            "__getitem__. Collect the samples of an iterable dataset in a list, or pass the "
            ".dataset of a loader."
        )
    labels = targets_of(part if given is None else given)
    if given is not None:
        name = "targets" if name == "dataset" else "exemplar_targets"
    check_length(labels, part, name)
    return labels


def check_features(features: torch.Tensor) -> None:
    if not isinstance(features, torch.Tensor):
        raise ConfigurationError(f"features is a {type(features).__name__}: must be a tensor.")
    if features.ndim != 2 or not features.is_floating_point():
        raise ConfigurationError(
            f"features has shape {tuple(features.shape)} and dtype {features.dtype}: must be "
            "floating point [samples, dimensions]. Use .flatten(1) or .float()."
        )
    finite = features.detach().isfinite().all(dim=1)
    if not finite.all():
        bad = (~finite).nonzero().flatten().tolist()
        raise ConfigurationError(
            f"features has NaN or infinity in {len(bad)} of {len(features)} rows, the first is row "
            f"{bad[0]}: must be finite. Check for a diverged network or an overflow in half "
            "precision."
        )


def _check_counts(classes: torch.Tensor, counts: torch.Tensor, wanted: int, name: str) -> None:
    short = (counts < wanted).nonzero().flatten()
    if len(short):
        worst = short[counts[short].argmin()]
        fewest = int(counts[worst])
        raise ConfigurationError(
            f"{name}={wanted}: must be ≤ {fewest}, since class {int(classes[worst])} has {fewest} "
            f"samples ({len(short)} of {len(classes)} classes have too few). Lower {name}, or pass "
            f"more samples."
        )
