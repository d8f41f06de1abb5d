"""Tables and pictures of the runs that evidence.py has finished, from their text files alone.

python benchmarks/evidence_tables.py

Reads --keep, and writes evidence.md and its pictures to --output. No training: seconds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from evidence_pictures import draw_accuracy, draw_alpha, draw_phases
from evidence_plan import ARMS, BLOCKS, BOTH, CONTROLS, GROUPS, MAIN, PAPER_ORDER, PLAN, Planned
from evidence_runs import Finished, cost_of, intransigence_of, matched, read, title_of

from aanets_plugin.baselines import METHODS
from aanets_plugin.budget import MB
from aanets_plugin.experiments.results import RULES, interval, signed

Pair = tuple[str, str]
"""Two arms, the second to be subtracted from the first."""


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
    """For each pair of arms a row for each method and protocol, and rows that pool methods."""
    rows = []
    for first, second in pairs:
        words = f"{ARMS[first].label} - {ARMS[second].label}"
        pooled: dict[str, list[tuple[Finished, Finished]]] = {}
        kinds = dict.fromkeys((run.planned.method, run.planned.protocol) for run in some)
        for method, protocol in kinds:
            own = [
                run
                for run in some
                if (run.planned.method, run.planned.protocol) == (method, protocol)
            ]
            both = matched(own, first, second)
            pooled.setdefault(protocol, []).extend(both)
            if both:
                seeds = ", ".join(str(one.planned.seed) for one, _ in both)
                precisions = ", ".join(dict.fromkeys(one.precision for one, _ in both))
                phases = f"{protocol}, {precisions}"
                rows.append([words, title_of(method), phases, seeds, *differences(both)])
        for protocol, both in pooled.items():
            if len({one.planned.method for one, _ in both}) > 1:
                _, *mean = differences(both)
                rows.append([words, "pooled", protocol, f"{len(both)} pairs", "", *mean])
    if not rows:
        return "No pair of runs is finished."
    header = ["difference", "method", "phases", "seeds", "average, by seed", "mean"]
    return markdown([*header, "95% interval", "last phase", "by the other rule"], rows)


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


def overview(finished: dict[Planned, Finished]) -> str:
    """A row for each method with 5 phases: the main arms and their differences, by seed."""
    rows = []
    for method, kind in METHODS.items():
        some = [
            run
            for planned, run in finished.items()
            if (planned.method, planned.protocol) == (method, "N5")
        ]
        both = matched(some, "learned", "plain")
        kept = {(one.planned.seed, one.planned.order) for one, _ in both}
        both_fixed = matched(some, "learned", "fixed")
        if not both or len(both_fixed) < len(both):
            continue
        means = [
            fmean(
                run.value("average")
                for run in some
                if run.planned.arm == arm and (run.planned.seed, run.planned.order) in kept
            )
            for arm in ("plain", "fixed", "learned")
        ]
        seeds = ", ".join(str(one.planned.seed) for one, _ in both)
        gains, *_ = differences(both)
        more, *_ = differences(both_fixed)
        rule = RULES[kind.predicts_by]
        rows.append([title_of(method), rule, *(f"{m:.2f}" for m in means), gains, more, seeds])
    labels = [ARMS[arm].label for arm in ("plain", "fixed", "learned")]
    header = ["baseline", "by", *labels, "learned α - plain, by seed", "learned - fixed, by seed"]
    return markdown([*header, "seeds"], rows)


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
        "gradients are halved; half the learning rate is the plain network with nothing else "
        "changed. More epochs can also harm a plain network that forgets; the row "
        "says nothing about other ways to spend the time.",
        (*CONTROLS, "half_lr"),
        [
            ("learned", "plain"),
            ("learned", "compute"),
            ("learned", "memory"),
            ("strict", "plain"),
            ("learned", "all_all"),
            ("learned", "half_lr"),
            ("compute", "plain"),
            ("memory", "plain"),
            ("all_all", "plain"),
            ("half_lr", "plain"),
        ],
        methods=BOTH,
        picture="controls",
    ),
    Section(
        "More phases",
        "The average has one more accuracy for each phase. A gain that grows with the phases is "
        "seen between rows, with few seeds; the rows do not share the later phases, so there is no "
        "pair to subtract. Rows in another precision do not share the first phase either.",
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
        "No large first phase: the stable branch is a network that knows 10 classes.",
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
    Section(
        "α on held-out exemplars",
        "α learns on a tenth of the exemplars, and as many images of each new class, which the "
        "network does not train on: two of each class. The exemplars of an old class that are held "
        "out are the same in all phases, but the network has trained on them when their class was "
        "new.",
        (*MAIN, "holdout"),
        [("holdout", "learned"), ("holdout", "fixed"), ("holdout", "plain")],
        methods=BOTH,
        protocols=("N5", "N25"),
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
    "the exemplars, minutes the processor time of all phases but the first; those of runs in "
    "float32 are of a slower processor. Differences are in "
    "points, between runs with the same seed, class order, precision and first phase; intervals "
    "are Student's over these pairs."
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
                parts += [f"**{own[0].title}**", arms_table(own, finished)]
                if section.picture and (section.picture, protocol) != ("phases", "N5"):
                    parts.append(draw_accuracy(own, section.picture, output))
    return "\n\n".join(parts)


def state_text(finished: dict[Planned, Finished]) -> str:
    """Which runs are finished and which are not."""
    groups = ", ".join(
        f"{sum(run in finished for run in group.runs)} of {len(group.runs)} ({group.title})"
        for group in GROUPS
    )
    text = f"{len(finished)} of {len(PLAN)} planned runs are finished: {groups}."
    text += " `python benchmarks/evidence.py --status` names the others."
    joint = [run for planned, run in finished.items() if planned.method == "joint"]
    if joint:
        averages = ", ".join(f"{run.value('average'):.2f}" for run in joint)
        text += f" Joint training, by head, has an average of {averages}."
    return text


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
    parts += ["## In short", overview(finished)]
    parts += [section_text(section, finished, args.output) for section in SECTIONS]
    if draw_phases(finished, args.output / "evidence_phases.png"):
        parts += ["## The gain over the number of phases", "![gain](evidence_phases.png)"]
    parts += ["## α", *draw_alpha(finished, args.output)]
    text = "\n\n".join(parts) + "\n"
    (args.output / "evidence.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
