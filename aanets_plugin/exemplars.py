"""Class-balanced subsets and herding: pure functions over labels and features.

Labels are read as a dataset stores them, before any ``target_transform``; where those are not
the classes to balance, pass ``targets=``. Every index that comes out is an int64 tensor on the CPU,
ready for :class:`torch.utils.data.Subset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from aanets_plugin.checks import positive
from aanets_plugin.errors import ConfigurationError

__all__ = ["balanced_indices", "balanced_subset", "herd", "herd_classes", "targets_of"]

# torchvision and avalanche use the first two, some torchvision datasets the third, continuum
# the last.
_LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "_y")


class MapStyle(Protocol):
    """Anything with a length and items: a tensor, a list, an array, a map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def targets_of(dataset: MapStyle | Dataset[Any]) -> torch.Tensor:
    """The class label of every sample, without reading a single sample.

    ``dataset`` is the labels themselves (a tensor, list or array of integers) or a dataset that
    keeps them in ``.targets``, ``.labels``, ``._labels``, ``._y`` or ``.tensors[-1]``. ``Subset``
    and ``ConcatDataset`` are followed to the datasets inside. The result is a copy.

    >>> from torch.utils.data import Subset, TensorDataset
    >>> data = TensorDataset(torch.zeros(4, 3), torch.tensor([5, 6, 5, 7]))
    >>> targets_of(Subset(data, [3, 0]))
    tensor([7, 5])
    """
    if isinstance(dataset, (torch.Tensor, list, tuple, range)) or hasattr(dataset, "__array__"):
        return _integers(dataset, "targets")
    refused = []
    for place, value in _label_places(dataset):
        try:
            labels = _integers(value, place)
            check_length(labels, dataset, place)
        except ConfigurationError as error:
            refused.append(str(error))
        else:
            return labels
    if isinstance(dataset, Subset):
        return targets_of(dataset.dataset)[_integers(dataset.indices, "Subset.indices")]
    if isinstance(dataset, ConcatDataset):
        return torch.cat([targets_of(part) for part in dataset.datasets])
    # A sequence that is no Dataset may be labels; its first item tells, so that a sequence of
    # images is never read through.
    if isinstance(dataset, Sequence) and not isinstance(dataset, (Dataset, str, bytes)):
        try:
            _integers([dataset[0]] if len(dataset) else [], "its first item")
        except ConfigurationError as error:
            refused.append(str(error))
        else:
            return _integers(dataset, "targets")
    looked = ", ".join(f".{name}" for name in _LABEL_ATTRIBUTES)
    raise ConfigurationError(
        f"found no class labels in a {type(dataset).__name__}: looked for {looked}, .tensors[-1], "
        "and inside Subset and ConcatDataset; pass the labels themselves, one integer per sample, "
        "as targets=" + "".join(f"\n  - {reason}" for reason in refused)
    )


def balanced_indices(
    targets: MapStyle | Dataset[Any],
    per_class: int | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Shuffled indices of a random subset with ``per_class`` samples of every class.

    ``targets`` is whatever :func:`targets_of` reads. Samples are drawn without replacement;
    ``per_class=None`` takes as many as the smallest class has. The same ``generator`` state gives
    the same indices.

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
            "targets is empty: expected at least one label; pass the targets of a dataset that "
            "has samples"
        )
    classes, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    if per_class is None:
        per_class = int(counts.min())
    else:
        _check_counts(classes, counts, per_class, "per_class")

    # A stable sort by class keeps the random order within each class, so that the first
    # ``per_class`` of every run are a draw without replacement.
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
    """Join old exemplars with new data into a shuffled dataset balanced over all classes.

    Both parts are map-style datasets and both are thinned: ``per_class`` samples of every class,
    by default as many as the smallest class has. A class that is in both parts counts once, drawn
    from both together; if ``dataset`` already contains the exemplars, leave ``exemplars`` out, or a
    sample may come twice. ``targets`` and ``exemplar_targets`` give the labels where
    :func:`targets_of` cannot find them. The result carries its labels in ``.targets``.

    >>> from torch.utils.data import TensorDataset
    >>> memory = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
    >>> new = TensorDataset(torch.zeros(50, 3), torch.full((50,), 2))
    >>> targets_of(balanced_subset(new, memory)).bincount()
    tensor([2, 2, 2])
    """
    if exemplars is None and exemplar_targets is not None:
        raise ConfigurationError(
            "exemplar_targets was given without exemplars; pass the dataset they label as "
            "exemplars=, or leave exemplar_targets out"
        )
    parts: list[Any] = []
    labels: list[torch.Tensor] = []
    for name, part, given in (
        ("exemplars", exemplars, exemplar_targets),
        ("dataset", dataset, targets),
    ):
        if part is None and name == "exemplars":
            continue
        found = _labels_of_part(name, part, given)
        if len(found):
            parts.append(part)
            labels.append(found)
    if not parts:
        raise ConfigurationError(
            "dataset and exemplars hold no samples: expected at least one; pass a dataset that "
            "has samples"
        )
    pooled = torch.cat(labels)
    chosen = balanced_indices(pooled, per_class, generator)
    whole: Dataset[Any] = parts[0] if len(parts) == 1 else ConcatDataset(parts)
    subset = Subset(whole, chosen.tolist())
    # Labels that were passed in cannot be found again inside the parts.
    subset.targets = pooled[chosen]  # type: ignore[attr-defined]
    return subset


def herd(features: torch.Tensor, k: int) -> torch.Tensor:
    """iCaRL's herding (Rebuffi et al. 2017, Algorithm 4): rank ``k`` exemplars of one class.

    ``features`` is ``[n, d]``, floating point, any device, not necessarily normalised: rows are
    L2-normalised here. The indices come best first: each is the one whose addition brings the mean
    of those chosen so far closest to the class mean, so a shorter memory is a prefix of a longer
    one. The arithmetic is float64 on the CPU, so half precision or another device changes
    nothing but the features.

    >>> herd(torch.tensor([[0.0, 1.0], [3.0, 3.0], [2.0, 0.0]]), 2)
    tensor([1, 0])
    """
    check_features(features)
    k = positive(k, "k")
    if k > len(features):
        raise ConfigurationError(
            f"k={k} exemplars were asked of {len(features)} samples; lower k to at most "
            f"{len(features)}, or pass more features"
        )
    return _herd(features, k)


def herd_classes(
    features: torch.Tensor, targets: MapStyle | Dataset[Any], k: int, *, at_most: bool = False
) -> dict[int, torch.Tensor]:
    """:func:`herd` for every class: class label to ``k`` ranked row indices of ``features``.

    With ``at_most=True`` a class with fewer than ``k`` samples gives all its samples, also ranked.
    Otherwise this is an error.

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
    # Step j minimises ||mean - (total + f) / j||. Times j, squared, and without the part that is
    # the same for every f, this is ||f||^2 - 2 f.(j mean - total): one matrix-vector product.
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


def _integers(value: Any, name: str) -> torch.Tensor:
    """A one-dimensional int64 copy on the CPU of a tensor, array or sequence of integers."""
    expected = "expected a one-dimensional tensor, list or array with one integer per sample"
    if isinstance(value, torch.Tensor):
        vector = value.detach()
    else:
        try:
            vector = _tensor(value)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ConfigurationError(
                f"{name} is a {type(value).__name__} that does not read as integers ({error}); "
                f"{expected}"
            ) from error
    if vector.ndim != 1:
        raise ConfigurationError(
            f"{name} has the shape {tuple(vector.shape)}; {expected}; turn one-hot labels into "
            "integers with .argmax(1)"
        )
    # An empty list becomes a float tensor.
    fractional = vector.is_floating_point() or vector.is_complex() or vector.dtype == torch.bool
    if len(vector) and fractional:
        raise ConfigurationError(
            f"{name} has the dtype {vector.dtype}; {expected}; convert it with .long() if its "
            "values are class labels"
        )
    return vector.to("cpu", torch.int64, copy=True)


def _tensor(value: Any) -> torch.Tensor:
    if not hasattr(value, "__array__"):
        return torch.tensor(list(value))
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, KeyError):
        # Reversed views, foreign byte orders and data frame columns.
        return torch.tensor(value.tolist())


def check_length(labels: torch.Tensor, dataset: Any, name: str) -> None:
    if hasattr(dataset, "__len__") and len(labels) != len(dataset):
        raise ConfigurationError(
            f"{name} has {len(labels)} labels for the {len(dataset)} samples of a "
            f"{type(dataset).__name__}; expected one label per sample"
        )


def _labels_of_part(name: str, part: Any, given: Any) -> torch.Tensor:
    mapped = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    if isinstance(part, IterableDataset) or not mapped:
        raise ConfigurationError(
            f"{name} is a {type(part).__name__}; expected a map-style dataset, with __len__ and "
            "__getitem__, because a balanced subset picks samples by index; collect the samples "
            "of an iterable dataset in a list, or pass the .dataset of a loader"
        )
    if given is None:
        labels = targets_of(part)
        check_length(labels, part, name)
        return labels
    argument = "targets" if name == "dataset" else "exemplar_targets"
    labels = targets_of(given)
    check_length(labels, part, argument)
    return labels


def check_features(features: torch.Tensor) -> None:
    if not isinstance(features, torch.Tensor):
        raise ConfigurationError(
            f"features is a {type(features).__name__}; expected a tensor [samples, dimensions]; "
            "convert it with torch.as_tensor"
        )
    if features.ndim != 2 or not features.is_floating_point():
        raise ConfigurationError(
            f"features has the shape {tuple(features.shape)} and the dtype {features.dtype}; "
            "expected floating point [samples, dimensions]; flatten it with .flatten(1) or convert "
            "it with .float()"
        )
    finite = features.detach().isfinite().all(dim=1)
    if not finite.all():
        bad = (~finite).nonzero().flatten().tolist()
        raise ConfigurationError(
            f"features has NaN or infinity in {len(bad)} of {len(features)} rows, the first is row "
            f"{bad[0]}; expected finite values; look for a diverged network or an overflow in half "
            "precision"
        )


def _check_counts(classes: torch.Tensor, counts: torch.Tensor, wanted: int, name: str) -> None:
    short = (counts < wanted).nonzero().flatten()
    if len(short):
        worst = short[counts[short].argmin()]
        fewest = int(counts[worst])
        raise ConfigurationError(
            f"{name}={wanted} was asked, but class {int(classes[worst])} has only {fewest} "
            f"samples ({len(short)} of {len(classes)} classes have too few); lower {name} to at "
            f"most {fewest}, or pass more samples of the class"
        )
