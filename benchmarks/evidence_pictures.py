"""The pictures of evidence_tables.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from evidence_plan import BOTH, PAPER_ORDER, Planned
from evidence_runs import Finished, matched, title_of

from aanets_plugin.experiments.accuracy_plot import plot_accuracy
from aanets_plugin.plot_style import INK, OTHERS, new_figure, save
from aanets_plugin.plots import plot_alpha


def draw_accuracy(own: Sequence[Finished], words: str, output: Path) -> str:
    """The accuracy over the phases; returns the line that shows it."""
    planned, title = own[0].planned, own[0].title
    phases = "" if planned.protocol == words else f"_{planned.protocol}"
    name = f"evidence_{words}_{planned.method}{phases}.png"
    plot_accuracy(
        [run.result for run in own], output / name, rule=own[0].rule, title=f"CIFAR-100: {title}"
    )
    return f"![{title}]({name})"


def draw_phases(finished: dict[Planned, Finished], path: Path) -> bool:
    """The gain over the number of phases, a line for each seed; False if there is one number."""
    counts = {"N5": 5, "N10": 10, "N25": 25}
    gains: dict[tuple[str, int], dict[int, float]] = {}
    for method, (protocol, count) in product(BOTH, counts.items()):
        some = [
            run
            for planned, run in finished.items()
            if (planned.method, planned.protocol) == (method, protocol)
            and planned.order == PAPER_ORDER
        ]
        for one, other in matched(some, "learned", "plain"):
            gain = one.value("average") - other.value("average")
            gains.setdefault((method, one.planned.seed), {})[count] = gain
    drawn = sorted({count for own in gains.values() for count in own})
    if len(drawn) < 2:
        return False
    figure, (axes,) = new_figure(6.0, 4.2)
    colors = dict(zip(BOTH, OTHERS[2:], strict=False))
    for (method, seed), own in sorted(gains.items()):
        style = {
            "color": colors[method],
            "marker": "os^"[seed],
            "linestyle": ["-", "--", ":"][seed],
        }
        axes.plot(list(own), list(own.values()), label=f"{title_of(method)}, seed {seed}", **style)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="phases after the first", ylabel="gain of average accuracy (points)")
    axes.set_title("Gain of AANets (learned α), by seed")
    axes.set_xticks(drawn)
    axes.legend()
    save(figure, path)
    return True


def draw_alpha(finished: dict[Planned, Finished], output: Path) -> list[str]:
    """α of the runs with learned α, seed 0; returns the lines that show it."""
    lines = []
    for planned, run in finished.items():
        if planned.arm == "learned" and planned.seed == 0 and run.alpha:
            name = f"evidence_alpha_{planned.method}_{planned.protocol}.png"
            plot_alpha(run.alpha, output / name)
            lines += [f"**{run.title}**", f"![α of {run.title}]({name})"]
    return lines
