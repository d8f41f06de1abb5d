"""branch_report: what each branch of an AANet knows, measured on test data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.alpha_gradient import unwrapped
from aanets_plugin.branch_results import BranchReport, BranchRow, branch_names
from aanets_plugin.convert import require_converted
from aanets_plugin.default_loss import inputs_and_labels, logits_of
from aanets_plugin.errors import ConfigurationError, PhaseError
from aanets_plugin.levels import AdaptiveLevel, named_levels
from aanets_plugin.modes import evaluating
from aanets_plugin.random_state import random_state_kept


def branch_report(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    phases: Sequence[Iterable[int]] | None = None,
    logits_of: Callable[[Any], Tensor] = logits_of,
) -> BranchReport:
    """Measure what each branch of a converted model knows.

    The accuracy and the loss are measured with α as learned, with each branch alone in all levels,
    and with each branch alone in one level while the other levels keep their α. The loader is read
    once. The model is the same afterwards.

    Args:
        model: A converted model whose base is frozen.
        loader: Batches of test data, in one of the forms that `BilevelStrategy` reads by default.
        phases: The classes of each phase, such as `[range(0, 50), range(50, 60)]`. The accuracy is
            reported for each phase, and the logits of other classes are left out. Default: all
            classes as one phase, and all logits.
        logits_of: Returns the logits in the model's output. Default: the output itself, its entry
            "logits", or the outputs of a list of heads side by side.

    Examples:
        >>> from aanets_plugin import convert_to_aanet
        >>> from aanets_plugin.baselines import resnet20
        >>> model = convert_to_aanet(resnet20(num_classes=4))
        >>> x, y = torch.randn(8, 3, 32, 32), torch.arange(8) % 4
        >>> report = branch_report(model, [(x, y)], phases=[[0, 1], [2, 3]])
        >>> [row.name for row in report.rows][:3]
        ['α as learned', 'plastic alone', 'stable alone']
    """
    model = unwrapped(model)
    require_converted(model, "branch_report")
    named = named_levels(model)
    if not all(level.base_frozen for level in named.values()):
        raise PhaseError(
            "branch_report: the model is in its base phase and has one branch. Train a phase after "
            "the first one, or call freeze_base(model)."
        )
    branches = branch_names(len(next(iter(named.values())).branches))
    phase_of = _phase_of(phases)
    choices = list(_choices(named, branches))
    tallies = [_Tally(1 if phases is None else len(phases)) for _ in choices]
    norms = {name: torch.zeros(len(branches), dtype=torch.float64) for name in named}
    device = next(model.parameters()).device
    with torch.no_grad(), evaluating(model), random_state_kept():
        for batch in loader:
            x, y = inputs_and_labels(batch)
            x, y = x.to(device), y.cpu()
            groups = _groups(y, phase_of)
            for (_, _, _, weights), tally in zip(choices, tallies, strict=True):
                with _alpha(named, weights), _norms(named, {} if weights else norms):
                    logits = _seen(logits_of(model(x)), phase_of)
                tally.add(
                    logits.to("cpu", torch.promote_types(logits.dtype, torch.float32)), y, groups
                )
    if not tallies[0].total:
        raise ConfigurationError("branch_report: the loader has no batch. Pass test data.")
    rows = tuple(
        BranchRow(name, branch, level, *tally.result())
        for (name, branch, level, _), tally in zip(choices, tallies, strict=True)
    )
    shares = {name: tuple((norm / norm.sum()).tolist()) for name, norm in norms.items()}
    return BranchReport(rows, shares, branches)


class _Tally:
    """Counts hits by phase, so that the memory does not grow with the data."""

    def __init__(self, phases: int) -> None:
        self.hits = torch.zeros(phases, dtype=torch.long)
        self.counts = torch.zeros(phases, dtype=torch.long)
        self.loss = 0.0

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def add(self, logits: Tensor, labels: Tensor, groups: Tensor) -> None:
        hits = groups[logits.argmax(1) == labels]
        self.hits += torch.bincount(hits, minlength=len(self.hits))
        self.counts += torch.bincount(groups, minlength=len(self.counts))
        self.loss += F.cross_entropy(logits, labels, reduction="sum").item()

    def result(self) -> tuple[float, float, tuple[float | None, ...]]:
        pairs = zip(self.hits.tolist(), self.counts.tolist(), strict=True)
        by_phase = tuple(100 * hits / count if count else None for hits, count in pairs)
        return 100 * int(self.hits.sum()) / self.total, self.loss / self.total, by_phase


def _choices(
    named: Mapping[str, AdaptiveLevel], branches: Sequence[str]
) -> Iterator[tuple[str, str | None, str | None, dict[str, int]]]:
    """Yield name, branch, level, and for the levels with one branch alone its number."""
    yield "α as learned", None, None, {}
    if len(branches) == 1:
        return
    for number, branch in enumerate(branches):
        yield f"{branch} alone", branch, None, dict.fromkeys(named, number)
    for level in named if len(named) > 1 else ():
        for number, branch in enumerate(branches):
            yield f"{branch} alone in {level}", branch, level, {level: number}


@contextmanager
def _alpha(named: Mapping[str, AdaptiveLevel], alone: Mapping[str, int]) -> Iterator[None]:
    """Give the branch with this number weight 1 in these levels."""
    before = {name: named[name].alpha for name in alone}
    try:
        for name, number in alone.items():
            alpha = before[name]
            assert alpha is not None
            weights = torch.zeros_like(alpha)
            weights[number] = 1
            named[name].alpha = weights
        yield
    finally:
        for name, alpha in before.items():
            named[name].alpha = alpha


@contextmanager
def _norms(named: Mapping[str, AdaptiveLevel], sums: Mapping[str, Tensor]) -> Iterator[None]:
    """Add to `sums` the norm of each branch's output times its weight, summed over samples."""
    handles = []
    for name, total in sums.items():
        level = named[name]
        weights = [1.0] if level.alpha is None else level.alpha.tolist()
        for number, branch in enumerate(level.branches):

            def add(
                _: Any,
                __: Any,
                output: Any,
                total: Tensor = total,
                number: int = number,
                weight: float = weights[number],
            ) -> None:
                norm = _passed_on(output).float().flatten(1).norm(dim=1)
                total[number] += weight * norm.sum().item()

            handles.append(branch.register_forward_hook(add))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _passed_on(output: Any) -> Tensor:
    """Return the tensor that a stage passes on: its output, or the last tensor in a container."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    return [_passed_on(value) for value in values][-1]


def _phase_of(phases: Sequence[Iterable[int]] | None) -> dict[int, int] | None:
    if phases is None:
        return None
    phase_of: dict[int, int] = {}
    for phase, classes in enumerate(phases):
        for label in classes:
            if label in phase_of:
                raise ConfigurationError(
                    f"phases: class {label} is in phase {phase_of[label]} and in phase {phase}. "
                    f"Name each class once."
                )
            phase_of[int(label)] = phase
    if not phase_of:
        raise ConfigurationError(f"phases={phases!r}: must name the classes of each phase.")
    return phase_of


def _groups(labels: Tensor, phase_of: dict[int, int] | None) -> Tensor:
    """Return the phase of each label."""
    if phase_of is None:
        return torch.zeros_like(labels)
    unknown = sorted(set(labels.tolist()) - phase_of.keys())
    if unknown:
        raise ConfigurationError(
            f"The loader has the label {unknown[0]}, which is in none of the phases. Name the "
            f"classes of all phases, or leave these samples out."
        )
    return torch.tensor([phase_of[label] for label in labels.tolist()], dtype=torch.long)


def _seen(logits: Tensor, phase_of: dict[int, int] | None) -> Tensor:
    """Leave out the logits of classes that are in no phase."""
    if phase_of is None:
        return logits
    unseen = torch.ones(logits.shape[1], dtype=torch.bool)
    unseen[[label for label in phase_of if label < len(unseen)]] = False
    return logits.masked_fill(unseen.to(logits.device), -torch.inf)
