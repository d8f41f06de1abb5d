"""Made-up results of runs, for tables, plots and pages."""

from __future__ import annotations

from aanets_plugin.experiments import Result

CLASSES = [50, 60, 70]
LEARNED, FIXED = "AANets, learned α", "AANets, fixed α"


def metrics(accuracies, **last):
    """The metrics of each phase; `last` replaces some of the last phase."""
    phases = []
    for phase, accuracy in enumerate(accuracies):
        phases.append(
            {
                "all": accuracy,
                "old": accuracy - 5 if phase else None,
                "new": accuracy + 10,
                "base": accuracy - 7,
                "by_phase": [accuracy] * (phase + 1),
                "average": sum(accuracies[: phase + 1]) / (phase + 1),
                "forgetting": 3.0 * phase if phase else None,
            }
        )
    phases[-1].update(last)
    return phases


def run(arm, seed, head, means=None):
    return Result(arm, seed, CLASSES, metrics(head), means and metrics(means))


def made_up_results():
    """Averages by head: plain 60, 62, 61; learned 63, 66, 63; fixed (one seed) 59; upper bound 72.
    By nearest mean: plain 58, 60, 59; learned 59, 61, 60."""
    return [
        run(LEARNED, 0, [72, 63, 54], [68, 59, 50]),
        run(LEARNED, 1, [75, 66, 57], [70, 61, 52]),
        run(LEARNED, 2, [72, 63, 54], [69, 60, 51]),
        run("upper bound", 0, [74, 72, 70]),
        run("plain", 0, [70, 60, 50], [68, 58, 48]),
        run("plain", 2, [71, 61, 51], [69, 59, 49]),
        run("plain", 1, [72, 62, 52], [70, 60, 50]),
        run(FIXED, 1, [70, 58, 49], [66, 60, 54]),
    ]
