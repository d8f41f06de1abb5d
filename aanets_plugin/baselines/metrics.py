"""Metrics after each phase: accuracies on groups of classes, average, forgetting, intransigence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from aanets_plugin.checks import check_shapes
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import integers


@dataclass(frozen=True)
class PhaseMetrics:
    """Accuracies on test samples after one phase, in per cent.

    `dataclasses.asdict` returns a dict for JSON, and `PhaseMetrics(**dict)` restores the object.
    """

    all: float
    """On all classes seen."""
    old: float | None
    """On the classes of earlier phases; None in phase 0."""
    new: float
    """On the classes of this phase."""
    base: float
    """On the classes of phase 0."""
    by_phase: list[float]
    """On the classes of each phase so far."""
    average: float
    """Average incremental accuracy (Rebuffi et al. 2017): the mean of `all` over the phases."""
    forgetting: float | None
    """Best earlier accuracy on the classes of an earlier phase minus the current one, averaged over
    those phases (Chaudhry et al. 2018, Eq. 3); None in phase 0."""
    confusion: list[list[int]] = field(default_factory=list)
    """The number of samples by the phase of their class (row) and of the predicted class (column).
    Empty in results of an earlier version."""


def phase_metrics(
    predictions: Tensor,
    targets: Tensor,
    increments: Sequence[int],
    earlier: Sequence[PhaseMetrics],
) -> PhaseMetrics:
    """Return the metrics of the last phase.

    `predictions` and `targets` are labels of test samples of all classes seen, numbered from 0 in
    the order of arrival. `increments` are the numbers of new classes of all phases so far.
    `earlier` are the results of this function for the earlier phases.

    Examples:
        >>> first = phase_metrics(torch.tensor([0, 1]), torch.tensor([0, 1]), [2], [])
        >>> predictions, targets = torch.tensor([0, 2, 2, 2]), torch.tensor([0, 1, 2, 2])
        >>> second = phase_metrics(predictions, targets, [2, 1], [first])
        >>> second.all, second.old, second.new, second.average, second.forgetting
        (75.0, 50.0, 100.0, 87.5, 50.0)
    """
    predictions, labels = integers(predictions, "predictions"), integers(targets, "targets")
    _check(predictions, labels, increments, earlier)
    correct = predictions == labels
    ends = torch.tensor(list(accumulate(increments)))
    phases = torch.bucketize(labels, ends, right=True)
    predicted = torch.bucketize(predictions.clamp(min=0), ends, right=True)
    count = torch.bincount(phases, minlength=len(increments)).tolist()
    hits = torch.bincount(phases[correct], minlength=len(increments)).tolist()
    if 0 in count:
        raise ConfigurationError(
            f"targets has no sample of the classes of phase {count.index(0)}. Pass test samples of "
            f"all classes seen, increments={list(increments)}."
        )
    by_phase = [100 * hit / of for hit, of in zip(hits, count, strict=True)]
    overall = 100 * sum(hits) / sum(count)
    falls = [
        max(metrics.by_phase[phase] for metrics in earlier[phase:]) - by_phase[phase]
        for phase in range(len(earlier))
    ]
    return PhaseMetrics(
        all=overall,
        old=100 * sum(hits[:-1]) / sum(count[:-1]) if earlier else None,
        new=by_phase[-1],
        base=by_phase[0],
        by_phase=by_phase,
        average=fmean([*(metrics.all for metrics in earlier), overall]),
        forgetting=fmean(falls) if earlier else None,
        confusion=_confusion(phases, predicted, len(increments)),
    )


def intransigence(
    phases: Sequence[Mapping[str, Any]], joint: Sequence[Mapping[str, Any]]
) -> float | None:
    """How far the accuracy on new classes is below that of joint training; less is better.

    It is the mean over the phases after the first (Chaudhry et al. 2018, Eq. 5). Joint training
    uses all data seen so far. Both are metrics as dicts, one for each phase of the same protocol.
    None with a single phase.

    Examples:
        >>> intransigence([{"new": 90.0}, {"new": 70.0}], [{"new": 90.0}, {"new": 80.0}])
        10.0
    """
    pairs = list(zip(phases, joint, strict=True))[1:]
    return fmean(best["new"] - own["new"] for own, best in pairs) if pairs else None


def _confusion(phases: Tensor, predicted: Tensor, count: int) -> list[list[int]]:
    known = predicted < count  # not so for a class that was not seen yet
    pairs = torch.bincount(phases[known] * count + predicted[known], minlength=count**2)
    return pairs.reshape(count, count).tolist()


def _check(predictions: Tensor, labels: Tensor, increments: Sequence[int], earlier: Any) -> None:
    if not increments or min(increments) < 1:
        raise ConfigurationError(
            f"increments={list(increments)}: must be the number of classes of each phase so far, "
            f"each ≥ 1."
        )
    check_shapes("samples, samples", predictions=predictions, targets=labels)
    if len(wrong := labels[(labels < 0) | (labels >= sum(increments))]):
        raise ConfigurationError(
            f"targets has the label {int(wrong[0])}: must be 0 to {sum(increments) - 1} with "
            f"increments={list(increments)}. Number the classes in the order in which they arrive."
        )
    lengths = [len(metrics.by_phase) for metrics in earlier]
    if lengths != list(range(1, len(increments))):
        raise ConfigurationError(
            f"earlier has {len(earlier)} metrics, of {lengths} phases each: must have one for each "
            f"of the {len(increments) - 1} earlier phases, in order."
        )
