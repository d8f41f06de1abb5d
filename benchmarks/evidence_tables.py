"""Tables and pictures of the runs that evidence.py has finished, from their text files alone.

python benchmarks/evidence_tables.py

Reads --keep, and writes evidence.md and its pictures to --output. No training: seconds.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence_plan import ARMS, BLOCKS, BOTH, CONTROLS, MAIN, PAPER_ORDER, PLAN, PROTOCOLS, Planned
from matplotlib.figure import Figure

from aanets_plugin import AlphaRecord, convert_to_aanet, profile
from aanets_plugin.baselines import METHODS, CifarResNet, Joint
from aanets_plugin.baselines.lifecycle import build_network
from aanets_plugin.baselines.metrics import intransigence
from aanets_plugin.experiments.accuracy_plot import plot_accuracy
from aanets_plugin.experiments.results import RULES, Result, interval, signed
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.plots import plot_alpha

MB = 2**20
SHAPE, CLASSES = (3, 32, 32), 100
Pair = tuple[str, str]
"""Two arms, the second to be subtracted from the first."""


# -- what there is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A run and what it left."""

    planned: Planned
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    seconds: list[float]
    """Processor time by phase."""
    alpha: list[AlphaRecord]

    @property
    def rule(self) -> Any:
        """The rule that the method's authors report."""
        return METHODS.get(self.planned.method, Joint).predicts_by

    def value(self, name: str, rule: str | None = None) -> float:
        """A metric after the last phase, by the reported rule or another one."""
        return float(self.rows[-1][rule or self.rule][name])

    @property
    def minutes(self) -> float:
        """Processor time of all phases but the first, which runs share."""
        return sum(self.seconds[1 : len(self.rows)]) / 60

    @property
    def result(self) -> Result:
        metrics = {rule: [row[rule] for row in self.rows] for rule in RULES if rule in self.rows[0]}
        classes = [row["classes"] for row in self.rows]
        return Result(ARMS[self.planned.arm].label, self.planned.seed, classes, **metrics)


def read(keep: Path) -> dict[Planned, Finished]:
    """The planned runs that are finished."""
    finished = {}
    for planned in PLAN:
        folder = keep / planned.name
        rows = RunFolder(folder).rows()
        if len(rows) == planned.phases:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            times = json.loads((folder / "time.json").read_text(encoding="utf-8"))
            alpha = RunFolder(folder).alpha()
            finished[planned] = Finished(planned, config, rows, times["cpu_seconds"], alpha)
    return finished


@functools.cache
def cost(method: str, blocks: tuple[str, ...] | None, stem: str, exemplars: int) -> Any:
    """Parameters and memory after the last phase."""
    kind = METHODS[method]()
    net = build_network(lambda: CifarResNet(3, CLASSES), kind, CLASSES, SHAPE)
    if blocks is not None:
        convert_to_aanet(net.backbone, blocks=blocks, stem=stem)
    return profile(net, SHAPE, exemplars=exemplars * CLASSES)


def cost_of(run: Finished) -> Any:
    aanets = run.config["aanets"] or {"blocks": None, "stem": ""}
    blocks = None if aanets["blocks"] is None else tuple(aanets["blocks"])
    return cost(run.planned.method, blocks, aanets["stem"], run.config["memory"]["per_class"])


def intransigence_of(run: Finished, runs: dict[Planned, Finished]) -> float | None:
    """Against joint training with the same seed; None if there is no such run."""
    planned = run.planned
    joint = runs.get(Planned("joint", "plain", planned.protocol, planned.seed, planned.order))
    if joint is None:
        return None
    best, own = [row["head"] for row in joint.rows], [row[run.rule] for row in run.rows]
    return intransigence(own, best)


# -- tables --------------------------------------------------------------------------------------


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arms_table(some: Sequence[Finished], runs: dict[Planned, Finished]) -> str:
    """A row for each arm, mean over its runs."""
    names = ["average", "all", "old", "new", "base", "forgetting"]
    rows = []
    for arm in dict.fromkeys(run.planned.arm for run in some):
        own = [run for run in some if run.planned.arm == arm]
        costs = [cost_of(run) for run in own]
        lacking = [intransigence_of(run, runs) for run in own]
        known = [value for value in lacking if value is not None] or [math.nan]
        rows.append(
            [
                ARMS[arm].label,
                *(f"{fmean(run.value(name) for run in own):.2f}" for name in names),
                "–" if math.isnan(known[0]) else f"{fmean(known):.2f}",
                f"{costs[0].learnable / 1000:.0f}K",
                f"{costs[0].parameters / 1000:.0f}K",
                f"{costs[0].memory / MB:.2f}",
                f"{fmean(run.minutes for run in own):.1f}",
                ", ".join(str(run.planned.seed) for run in own),
            ]
        )
    header = ["arm", "average", "last phase", "old", "new", "base", "forgetting", "intransigence"]
    return markdown([*header, "learnable", "parameters", "MB", "minutes", "seeds"], rows)


def pairs_table(some: Sequence[Finished], pairs: Sequence[Pair]) -> str:
    """For each pair of arms a row for each method and protocol, and one that pools methods."""
    rows = []
    for first, second in pairs:
        words = f"{ARMS[first].label} - {ARMS[second].label}"
        pooled: list[tuple[Finished, Finished]] = []
        kinds = list(dict.fromkeys((run.planned.method, run.planned.protocol) for run in some))
        for method, protocol in kinds:
            own = [
                run
                for run in some
                if (run.planned.method, run.planned.protocol) == (method, protocol)
            ]
            both = matched(own, first, second)
            pooled += both
            if both:
                seeds = ", ".join(str(one.planned.seed) for one, _ in both)
                rows.append([words, method, protocol, seeds, *differences(both)])
        if len({one.planned.method for one, _ in pooled}) > 1:
            protocols = ", ".join(dict.fromkeys(one.planned.protocol for one, _ in pooled))
            _, *mean = differences(pooled)
            rows.append([words, "pooled", protocols, f"{len(pooled)} pairs", "", *mean])
    if not rows:
        return "No pair of runs is finished."
    header = ["difference", "method", "phases", "seeds", "average, by seed", "mean"]
    return markdown([*header, "95% interval", "last phase", "by the other rule"], rows)


def matched(some: Sequence[Finished], first: str, second: str) -> list[tuple[Finished, Finished]]:
    """Runs of two arms with the same seed and class order."""
    places = {
        (run.planned.seed, run.planned.order): run for run in some if run.planned.arm == second
    }
    return [
        (run, places[run.planned.seed, run.planned.order])
        for run in some
        if run.planned.arm == first and (run.planned.seed, run.planned.order) in places
    ]


def differences(both: Sequence[tuple[Finished, Finished]]) -> list[str]:
    def of(value: Callable[[Finished], float]) -> list[float]:
        return [value(one) - value(other) for one, other in both]

    gains = of(lambda run: run.value("average"))
    other = of(lambda run: run.value("average", other_rule(run)))
    return [
        ", ".join(map(signed, gains)),
        f"**{signed(fmean(gains))}**",
        interval(gains),
        signed(fmean(of(lambda run: run.value("all")))),
        signed(fmean(other)),
    ]


def other_rule(run: Finished) -> str:
    return next(rule for rule in RULES if rule != run.rule)


# -- sections ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A question: which runs belong to it, which arms are compared, and what it can show."""

    title: str
    shows: str
    arms: Sequence[str]
    pairs: Sequence[Pair]
    methods: Sequence[str] = tuple(METHODS)
    protocols: Sequence[str] = ("N5",)
    orders: Sequence[int] = (PAPER_ORDER,)
    picture: str = ""
    """Part of the names of its accuracy curves; none are drawn without it."""

    def runs(self, finished: dict[Planned, Finished]) -> list[Finished]:
        """Arms in the order of the section, seeds in their own."""
        some = [
            run
            for planned, run in finished.items()
            if planned.method in self.methods
            and planned.protocol in self.protocols
            and planned.arm in self.arms
            and planned.order in self.orders
        ]
        places: dict[str, Sequence[str]] = {
            "method": self.methods,
            "protocol": self.protocols,
            "arm": self.arms,
        }
        return sorted(
            some,
            key=lambda run: (
                *(list(order).index(getattr(run.planned, name)) for name, order in places.items()),
                run.planned.seed,
            ),
        )


GAINS = [("learned", "plain"), ("fixed", "plain"), ("learned", "fixed")]
SECTIONS = [
    Section(
        "By how much AANets help",
        "Differences are between runs that share their first phase, so its luck is not in them. "
        "Seeds 0 and 1 have the paper's class order, seed 2 has another. The pooled row takes "
        "pairs for independent, though methods share first phases and data.",
        MAIN,
        GAINS,
        orders=(PAPER_ORDER, 2),
        picture="gain",
    ),
    Section(
        "Equal compute, equal memory",
        "What remains of the gain if the plain network gets the time of AANets (11 epochs for 5) "
        "or their memory (24 exemplars for 20), and if AANets get only the memory of the plain "
        "network (16 exemplars). All + all: its branches stay equal, so it is one branch whose "
        "gradients are halved. More epochs can also harm a plain network that forgets; the row "
        "says nothing about other ways to spend the time.",
        CONTROLS,
        [
            ("learned", "plain"),
            ("learned", "compute"),
            ("learned", "memory"),
            ("strict", "plain"),
            ("learned", "all_all"),
            ("compute", "plain"),
            ("memory", "plain"),
            ("all_all", "plain"),
        ],
        methods=BOTH,
        picture="controls",
    ),
    Section(
        "More phases",
        "The first phase is the same for 5, 10 and 25 phases, and the average has one more "
        "accuracy for each phase. A gain that grows with the phases is seen between rows, with two "
        "seeds; the rows do not share the later phases, so there is no pair to subtract.",
        MAIN,
        GAINS,
        methods=BOTH,
        protocols=("N5", "N10", "N25"),
        picture="phases",
    ),
    Section(
        "Blocks and stems",
        "One change at a time against the default, all + scaling with the stable stem and learned "
        "α. One method and two seeds: a difference below half a point is not told from chance.",
        ("plain", "learned", "fixed", "all_all", *BLOCKS),
        [(arm, "learned") for arm in ("fixed", "all_all", *BLOCKS)],
        methods=("lucir",),
        picture="blocks",
    ),
    Section(
        "Another class order",
        "One seed with one other order: whether the signs stay, not how far orders differ.",
        MAIN,
        GAINS,
        orders=(2,),
    ),
    Section(
        "From scratch",
        "No large first phase: the stable branch is a network that knows 10 classes. 15 epochs in "
        "each later phase, so these accuracies do not compare with those above.",
        ("plain", "learned", "update_base"),
        [("learned", "plain"), ("update_base", "plain"), ("update_base", "learned")],
        methods=BOTH,
        protocols=("scratch",),
        picture="scratch",
    ),
    Section(
        "The official update",
        "α as the authors' code updates it, everything else as above. One seed.",
        ("plain", "learned", "fixed", "official"),
        [("official", "plain"), ("official", "learned")],
        methods=("lucir",),
    ),
]
CAPTION = (
    "Accuracies are in per cent by the rule that the method's authors report (iCaRL: nearest mean, "
    "the others: head), means over seeds. Average: the mean over all phases of the accuracy on all "
    "classes seen. After the last phase: on all classes (last phase), on those of earlier phases "
    "(old), of the last one (new), of phase 0 (base). Forgetting: how far the classes of a phase "
    "are below their best accuracy in an earlier phase. Intransigence: how far the new classes of "
    "a phase are below joint training, mean over later phases; – where no joint run is finished. "
    "Less is better for both. Parameters are those of the network with 100 classes, MB those and "
    "the exemplars, minutes the processor time of all phases but the first. Differences are in "
    "points, between runs with the same seed, class order and first phase; intervals are Student's "
    "over these pairs."
)


def section_text(section: Section, finished: dict[Planned, Finished], output: Path) -> str:
    some = section.runs(finished)
    parts = [f"## {section.title}", section.shows]
    compared = [pair for pair in section.pairs if matched(some, *pair)]
    if not compared:
        return "\n\n".join([*parts, "No pair of runs is finished."])
    parts.append(pairs_table(some, compared))
    for method in section.methods:
        for protocol in section.protocols:
            own = [run for run in some if run.planned.method == method]
            own = [run for run in own if run.planned.protocol == protocol]
            if own:
                title = f"**{method}, {PROTOCOLS[protocol].label}**"
                parts += [title, arms_table(own, finished)]
                if section.picture:
                    parts.append(draw_accuracy(own, section.picture, output))
    return "\n\n".join(parts)


def state_text(finished: dict[Planned, Finished]) -> str:
    """Which runs are finished and which are not."""
    missing = [f"`{planned.name}`" for planned in PLAN if planned not in finished]
    text = f"{len(finished)} of {len(PLAN)} planned runs are finished."
    if missing:
        text += f" Not yet, or not at all: {', '.join(missing)}."
    joint = [run for planned, run in finished.items() if planned.method == "joint"]
    if joint:
        averages = ", ".join(f"{run.value('average'):.2f}" for run in joint)
        text += f" Joint training, by head, has an average of {averages}."
    return text


# -- pictures ------------------------------------------------------------------------------------


def draw_accuracy(own: Sequence[Finished], words: str, output: Path) -> str:
    """The accuracy over the phases; returns the line that shows it."""
    planned = own[0].planned
    phases = "" if planned.protocol == words else f"_{planned.protocol}"
    name = f"evidence_{words}_{planned.method}{phases}.png"
    title = f"{planned.method}, {PROTOCOLS[planned.protocol].label}"
    plot_accuracy([run.result for run in own], output / name, rule=own[0].rule, title=title)
    return f"![{title}]({name})"


def draw_phases(finished: dict[Planned, Finished], path: Path) -> bool:
    """The gain over the number of phases; False if there is only one number."""
    counts = {"N5": 5, "N10": 10, "N25": 25}
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axes = figure.subplots()
    drawn = set()
    for method, marker in zip(BOTH, "os", strict=True):
        gains: dict[int, list[float]] = {}
        for protocol, count in counts.items():
            some = [
                run
                for planned, run in finished.items()
                if (planned.method, planned.protocol) == (method, protocol)
                and planned.order == PAPER_ORDER
            ]
            for one, other in matched(some, "learned", "plain"):
                gains.setdefault(count, []).append(one.value("average") - other.value("average"))
        drawn |= set(gains)
        means = {count: fmean(values) for count, values in gains.items()}
        (line,) = axes.plot(list(means), list(means.values()), marker=marker, label=method)
        for count, values in gains.items():
            axes.plot([count] * len(values), values, "_", color=line.get_color(), markersize=12)
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set(xlabel="phases after the first", ylabel="learned α - plain, points")
    axes.set_xticks(list(counts.values()))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return len(drawn) > 1


def draw_alpha(finished: dict[Planned, Finished], output: Path) -> list[str]:
    """α of the runs with learned α, seed 0; returns the lines that show it."""
    lines = []
    for planned, run in finished.items():
        if planned.arm == "learned" and planned.seed == 0 and run.alpha:
            name = f"evidence_alpha_{planned.method}_{planned.protocol}.png"
            plot_alpha(run.alpha, output / name)
            lines.append(f"![α of {planned.method}, {PROTOCOLS[planned.protocol].label}]({name})")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results = Path(__file__).parent / "results"
    parser.add_argument("--keep", type=Path, default=results / "runs", help="finished runs")
    parser.add_argument("--output", type=Path, default=results, help="for tables and pictures")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    finished = read(args.keep)
    parts = ["# Evidence", "`python benchmarks/evidence_tables.py`", state_text(finished), CAPTION]
    parts += [section_text(section, finished, args.output) for section in SECTIONS]
    if draw_phases(finished, args.output / "evidence_phases.png"):
        parts += ["## The gain over the number of phases", "![gain](evidence_phases.png)"]
    parts += ["## α", *draw_alpha(finished, args.output)]
    text = "\n\n".join(parts) + "\n"
    (args.output / "evidence.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
