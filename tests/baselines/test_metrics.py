"""What is measured after each phase, against numbers by hand and a slow loop."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
import torch

from aanets_plugin import ConfigurationError
from aanets_plugin.baselines.metrics import PhaseMetrics, phase_metrics

INCREMENTS = [2, 1, 1]
# Two samples of each class. Right of each phase's: 3/4; then 2/4, 2/2; then 3/4, 0/2, 2/2.
TARGETS = [[0, 0, 1, 1], [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 3, 3]]
PREDICTIONS = [[0, 0, 1, 0], [0, 2, 1, 2, 2, 2], [0, 0, 1, 3, 3, 3, 3, 3]]


def after_each_phase(predictions, targets, increments):
    metrics = []
    for phase in range(len(increments)):
        arguments = torch.tensor(predictions[phase]), torch.tensor(targets[phase])
        metrics.append(phase_metrics(*arguments, increments[: phase + 1], metrics))
    return metrics


@pytest.fixture
def by_hand():
    return after_each_phase(PREDICTIONS, TARGETS, INCREMENTS)


def test_the_first_phase_has_no_old_classes_and_forgets_nothing(by_hand):
    assert by_hand[0] == PhaseMetrics(
        all=75.0,
        old=None,
        new=75.0,
        base=75.0,
        by_phase=[75.0],
        average=75.0,
        forgetting=None,
        confusion=[[4]],
    )


def test_later_phases_are_as_computed_by_hand(by_hand):
    """Forgetting in phase 1: from 75 to 50. In phase 2 the base is back at its best, 75, and the
    class of phase 1 fell from 100 to 0."""
    second, third = by_hand[1:]
    assert second.by_phase == [50.0, 100.0]
    assert (second.old, second.new, second.base) == (50.0, 100.0, 50.0)
    assert second.all == pytest.approx(100 * 4 / 6)
    assert second.average == pytest.approx((75 + 100 * 4 / 6) / 2)
    assert second.forgetting == 25.0
    assert third.by_phase == [75.0, 0.0, 100.0]
    assert (third.old, third.new, third.base) == (50.0, 100.0, 75.0)
    assert third.all == 62.5
    assert third.average == pytest.approx((75 + 100 * 4 / 6 + 62.5) / 3)
    assert third.forgetting == (0 + 100) / 2


def test_forgetting_is_negative_where_old_classes_got_better():
    """The best counts among earlier phases only, not the current one."""
    metrics = after_each_phase([[0, 1, 1, 1], [0, 0, 2]], [[0, 0, 0, 0], [0, 0, 1]], [1, 1])
    assert [m.base for m in metrics] == [25.0, 100.0]
    assert metrics[1].forgetting == -75.0


def test_forgetting_is_from_the_best_phase_and_not_from_the_first_or_the_last():
    targets = [[0] * 4, [0] * 4 + [1], [0] * 4 + [1, 2], [0] * 4 + [1, 2, 3]]
    right = [1, 4, 2, 3]
    predictions = [
        [0] * count + [9] * (4 - count) + target[4:]
        for count, target in zip(right, targets, strict=True)
    ]
    metrics = after_each_phase(predictions, targets, [1] * 4)
    assert [m.base for m in metrics] == [25.0, 100.0, 50.0, 75.0]
    assert metrics[2].forgetting == 50 / 2
    assert metrics[3].forgetting == pytest.approx(25 / 3)


def test_accuracy_counts_samples_and_not_classes():
    """Three samples of class 0, all right, and one of class 1, wrong: 75, not 50."""
    targets = torch.tensor([0, 0, 0, 1])
    assert phase_metrics(torch.zeros(4, dtype=torch.long), targets, [2], []).all == 75.0


def slow(predictions, targets, increments):
    """The definitions, literally, of the last phase; everything from scratch."""

    def accuracy(phase, classes):
        pairs = zip(predictions[phase], targets[phase], strict=True)
        hits = [p == t for p, t in pairs if t in classes]
        return 100 * sum(hits) / len(hits)

    starts = [sum(increments[:p]) for p in range(len(increments))]
    groups = [set(range(s, s + n)) for s, n in zip(starts, increments, strict=True)]
    now = len(increments) - 1
    overall = [accuracy(p, set().union(*groups[: p + 1])) for p in range(now + 1)]
    old, falls = None, []
    if now:
        old = accuracy(now, set().union(*groups[:now]))
        for j in range(now):
            best = max(accuracy(p, groups[j]) for p in range(j, now))
            falls.append(best - accuracy(now, groups[j]))
    return {
        "all": overall[-1],
        "old": old,
        "new": accuracy(now, groups[now]),
        "base": accuracy(now, groups[0]),
        "by_phase": [accuracy(now, group) for group in groups],
        "average": sum(overall) / len(overall),
        "forgetting": sum(falls) / len(falls) if falls else None,
        "confusion": [
            [
                sum(
                    t in own and p in other
                    for p, t in zip(predictions[now], targets[now], strict=True)
                )
                for other in groups
            ]
            for own in groups
        ],
    }


@pytest.mark.parametrize("increments", [[7], [50, 10, 10], [1, 1, 1, 1, 1], [4, 2, 3, 1]])
def test_metrics_agree_with_a_slow_loop(increments):
    predictions, targets = [], []
    for phase in range(len(increments)):
        seen = sum(increments[: phase + 1])
        labels = torch.arange(seen).repeat(3)
        labels = torch.cat([labels, torch.randint(seen, (40,))])[torch.randperm(3 * seen + 40)]
        guesses = torch.where(torch.rand(len(labels)) < 0.6, labels, torch.randint(seen, (1,)))
        predictions.append(guesses.tolist())
        targets.append(labels.tolist())
    metrics = after_each_phase(predictions, targets, increments)
    for phase, given in enumerate(metrics):
        expected = slow(predictions, targets, increments[: phase + 1])
        for name, value in asdict(given).items():
            if name == "confusion":
                assert value == expected[name]
            else:
                assert value == pytest.approx(expected[name], abs=1e-9), (phase, name)
    assert len({m.all for m in metrics}) == len(metrics), "the control: phases differ"


def test_the_order_of_samples_does_not_matter_and_the_pairing_does(by_hand):
    predictions, targets = torch.tensor(PREDICTIONS[2]), torch.tensor(TARGETS[2])
    order = torch.randperm(8)
    shuffled = phase_metrics(predictions[order], targets[order], INCREMENTS, by_hand[:2])
    assert shuffled == by_hand[2]
    assert phase_metrics(predictions.flip(0), targets, INCREMENTS, by_hand[:2]) != by_hand[2]


def test_a_prediction_of_a_class_not_seen_yet_is_wrong():
    metrics = phase_metrics(torch.tensor([0, 99, -1, 1]), torch.tensor([0, 0, 1, 1]), [2], [])
    assert metrics.all == 50.0


def test_metrics_survive_json_and_cannot_be_changed(by_hand):
    assert [PhaseMetrics(**json.loads(json.dumps(asdict(m)))) for m in by_hand] == by_hand
    with pytest.raises(FrozenInstanceError):
        by_hand[0].all = 100.0


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_any_integers_do(dtype, by_hand):
    predictions = torch.tensor(PREDICTIONS[0], dtype=dtype)
    assert phase_metrics(predictions, torch.tensor(TARGETS[0]), [2], []) == by_hand[0]


LABELS = torch.tensor([0, 1])
FIRST = PhaseMetrics(100.0, None, 100.0, 100.0, [100.0], 100.0, None)


@pytest.mark.parametrize(
    ("predictions", "targets", "increments", "earlier", "message"),
    [
        (LABELS[:1], LABELS, [2], [], r"shape \(1,\), targets has the shape \(2,\)"),
        (torch.eye(2), LABELS, [2], [], r"predictions has shape \(2, 2\).*\.argmax\(1\)"),
        (LABELS.float(), LABELS, [2], [], "predictions has dtype torch.float32"),
        (LABELS, LABELS == 1, [2], [], "targets has dtype torch.bool"),
        (LABELS[:0], LABELS[:0], [2], [], "no sample of the classes of phase 0"),
        (LABELS, LABELS + 1, [2], [], r"label 2: must be 0 to 1 with increments=\[2\]"),
        (LABELS, LABELS - 1, [2], [], "label -1: must be 0 to 1"),
        (LABELS, LABELS, [2, 1], [FIRST], "no sample of the classes of phase 1"),
        (LABELS, LABELS, [], [], r"increments=\[\]"),
        (LABELS, LABELS, [2, 0], [FIRST], r"increments=\[2, 0\].*each ≥ 1"),
        (LABELS, LABELS, [1, 1], [], "earlier has 0 metrics.*each of the 1 earlier phases"),
        (LABELS, LABELS, [2], [FIRST], "earlier has 1 metrics.*each of the 0 earlier phases"),
        (
            LABELS,
            LABELS,
            [1, 1],
            [replace(FIRST, by_phase=[1.0, 2.0])],
            r"of \[2\] phases each: .* in order",
        ),
    ],
)
def test_input_that_cannot_be_measured_is_refused(
    predictions, targets, increments, earlier, message
):
    with pytest.raises(ConfigurationError, match=message):
        phase_metrics(predictions, targets, increments, earlier)


def test_the_same_input_without_the_fault_is_measured():
    """The control of the refusals."""
    assert phase_metrics(LABELS, LABELS, [1, 1], [FIRST]).all == 100.0
