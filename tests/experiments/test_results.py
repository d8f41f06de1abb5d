"""Result tables from made-up numbers."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

import pytest

import aanets_plugin
from aanets_plugin import ConfigurationError
from aanets_plugin.experiments import (
    Result,
    accuracy_table,
    paired_table,
    plot_accuracy,
    results_table,
)
from aanets_plugin.experiments.results import interval
from tests.experiments.results_setup import CLASSES, FIXED, LEARNED, made_up_results, metrics, run


@pytest.fixture
def results():
    return made_up_results()


def table(text):
    """The rows of a table with its header, and the caption."""
    lines = text.splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    rows = [[cell.strip() for cell in row] for row in rows]
    assert set("".join(rows[1])) == {"-", ":"}, "the line that makes it a table"
    assert {len(row) for row in rows} == {len(rows[0])}
    return [rows[0], *rows[2:]], "\n".join(line for line in lines if not line.startswith("|"))


def rows_by(text):
    (header, *rows), _ = table(text)
    return {(row[0], row[1]): dict(zip(header[2:], row[2:], strict=True)) for row in rows}


# --- results_table


def test_a_row_has_mean_and_half_range_over_the_seeds_and_the_last_phase(results):
    """Learned: 63, 66, 63: mean 64, half the range 1.5; last phase 54, 57, 54."""
    row = rows_by(results_table(results))[LEARNED, "head"]
    assert row == {
        "average": "64.00 ± 1.50",
        "last phase": "55.00 ± 1.50",
        "old": "50.00",
        "new": "65.00",
        "base": "48.00",
        "forgetting": "6.00",
        "seeds": "3",
    }


def test_each_arm_by_each_rule_has_a_row_with_the_plain_network_first(results):
    (_, *rows), _ = table(results_table(results))
    assert [row[:2] for row in rows] == [
        ["plain", "head"],
        [LEARNED, "head"],
        [FIXED, "head"],
        ["upper bound", "head"],
        ["plain", "nearest mean"],
        [LEARNED, "nearest mean"],
        [FIXED, "nearest mean"],
    ]


def test_one_seed_has_no_spread(results):
    rows = rows_by(results_table(results))
    assert rows[FIXED, "head"]["average"] == "59.00"
    assert rows[FIXED, "nearest mean"]["average"] == "60.00"
    _, caption = table(results_table(results))
    assert "± half the range over seeds" in caption
    _, alone = table(results_table(results[:1]))
    assert "one seed" in alone
    assert "±" not in alone


def test_the_reported_rule_comes_first_in_bold(results):
    text = results_table(results, reported="nearest_mean")
    (_, *rows), caption = table(text)
    assert [row[1] for row in rows] == ["nearest mean"] * 3 + ["head"] * 4
    for row in rows:
        assert row[2].startswith("**") == (row[1] == "nearest mean")
    assert rows_by(text)["plain", "nearest mean"]["average"] == "**59.00 ± 1.00**"
    assert "Bold: by nearest mean" in caption
    assert "*" not in results_table(results)


def test_a_base_phase_alone_has_no_old_classes():
    only = Result("plain", 0, [50], metrics([70.0]))
    row = rows_by(results_table([only]))["plain", "head"]
    assert (row["old"], row["forgetting"], row["last phase"]) == ("–", "–", "70.00")


def test_tables_are_aligned_as_plain_text(results):
    for text in (results_table(results, reported="head"), paired_table(results)):
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert len({len(line) for line in lines}) == 1
        ends = [[match.start() for match in re.finditer(r"\|", line)] for line in lines]
        assert all(end == ends[0] for end in ends)


def test_a_bar_in_a_name_does_not_end_its_cell():
    text = results_table([run("a|b", 0, [3, 2, 1])])
    assert r"| a\|b |" in text


# --- accuracy_table


def test_a_column_has_the_mean_over_seeds_after_each_phase(results):
    """Learned by head: 72, 75, 72, then 63, 66, 63, then 54, 57, 54."""
    rows = rows_by(accuracy_table(results))
    assert rows[LEARNED, "head"] == {
        "50 classes": "73.00",
        "60 classes": "64.00",
        "70 classes": "55.00",
        "average": "64.00",
        "forgetting": "6.00",
    }
    assert [arm for arm, _ in rows] == ["plain", LEARNED, FIXED, "upper bound"]
    others = rows_by(accuracy_table(results, rule="nearest_mean"))
    assert others["plain", "nearest mean"]["50 classes"] == "69.00"
    assert ("upper bound", "nearest mean") not in others


# --- paired_table


def test_differences_are_between_runs_of_the_same_seed(results):
    """Learned - plain: 3, 4, 2. Mean 3, standard deviation 1, t(2) = 4.302653: 3 ± 2.484."""
    row = rows_by(paired_table(results))[LEARNED, "head"]
    assert row == {"difference to plain": "+3.00", "95% interval": "+0.52 to +5.48", "seeds": "3"}
    constant = rows_by(paired_table(results))[LEARNED, "nearest mean"]
    assert constant["95% interval"] == "+1.00 to +1.00"


def test_the_order_of_the_results_does_not_matter_and_the_seeds_do(results):
    assert rows_by(paired_table(results[::-1])) == rows_by(paired_table(results))
    swapped = [
        Result(r.arm, {0: 1, 1: 0}.get(r.seed, r.seed), r.classes, r.head, r.nearest_mean)
        if r.arm == "plain"
        else r
        for r in results
    ]
    row = rows_by(paired_table(swapped))[LEARNED, "head"]
    assert row["difference to plain"] == "+3.00"
    assert row["95% interval"] != rows_by(paired_table(results))[LEARNED, "head"]["95% interval"]


def test_one_seed_has_a_difference_and_no_interval(results):
    """Fixed ran with seed 1 only: 59 - 62 by head, 60 - 60 by nearest mean."""
    rows = rows_by(paired_table(results))
    assert rows[FIXED, "head"] == {
        "difference to plain": "-3.00",
        "95% interval": "one seed, no interval",
        "seeds": "1",
    }
    assert rows[FIXED, "nearest mean"]["difference to plain"] == "+0.00"


def test_a_loss_too_small_to_print_has_no_minus():
    results = [run("plain", 0, [3, 3, 3]), run("new", 0, [3, 3, 2.997])]
    assert rows_by(paired_table(results))["new", "head"]["difference to plain"] == "+0.00"
    results[1] = run("new", 0, [3, 3, 2.7])
    assert rows_by(paired_table(results))["new", "head"]["difference to plain"] == "-0.10"


def test_seeds_that_only_one_arm_has_are_not_compared():
    results = [run("plain", 0, [3, 3, 3]), run("new", 1, [9, 9, 9])]
    row = rows_by(paired_table(results))["new", "head"]
    assert row == {
        "difference to plain": "–",
        "95% interval": "no seed in common",
        "seeds": "0",
    }
    row = rows_by(paired_table([*results, run("new", 0, [4, 4, 4])]))["new", "head"]
    assert (row["difference to plain"], row["seeds"]) == ("+1.00", "1")


def test_another_arm_can_be_the_reference_and_has_no_row(results):
    rows = rows_by(paired_table(results, FIXED))
    assert (FIXED, "head") not in rows
    assert rows["plain", "head"]["difference to AANets, fixed α"] == "+3.00"


def test_a_rule_that_one_side_lacks_is_left_out(results):
    assert ("upper bound", "head") in rows_by(paired_table(results))
    assert ("upper bound", "nearest mean") not in rows_by(paired_table(results))
    assert {rule for _, rule in rows_by(paired_table(results, "upper bound"))} == {"head"}


def test_the_reported_rule_comes_first_in_bold_when_paired(results):
    (_, *rows), _ = table(paired_table(results, reported="nearest_mean"))
    assert rows[0][:3] == [LEARNED, "nearest mean", "**+1.00**"]
    assert rows[-1][1] == "head"
    assert "*" not in rows[-1][2]


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706205), (2, 4.302653), (3, 3.182446), (4, 2.776445), (9, 2.262157), (30, 2.042272)],
)
def test_the_interval_has_the_quantiles_of_the_printed_tables(freedom, quantile):
    differences = [1000.0 * seed for seed in range(freedom + 1)]
    half = quantile * stdev(differences) / math.sqrt(freedom + 1)
    low, high = map(float, interval(differences).split(" to "))
    # Printed with two digits; the quantile has six.
    assert (high - low) / 2 == pytest.approx(half, rel=1e-6, abs=0.01)
    assert (high + low) / 2 == pytest.approx(fmean(differences), abs=0.01)


def test_an_interval_of_many_seeds_is_narrower():
    """t and √n both shrink: 3 seeds against 12 with the same standard deviation."""

    def width(seeds):
        results = [run("plain", s, [0, 0, 0]) for s in range(seeds)]
        results += [run("new", s, [s % 3, s % 3, s % 3]) for s in range(seeds)]
        interval = rows_by(paired_table(results))["new", "head"]["95% interval"]
        low, high = map(float, interval.split(" to "))
        return high - low

    assert width(12) < width(3) / 2
    assert math.isfinite(width(200))


# --- what is refused


@pytest.mark.parametrize("make", [results_table, accuracy_table, paired_table, plot_accuracy])
def test_results_that_do_not_fit_together_are_refused(make, results):
    make(results)
    with pytest.raises(ConfigurationError, match=r"results=\[\]"):
        make([])
    with pytest.raises(ConfigurationError, match="two results of 'plain' with seed 2"):
        make([*results, results[5]])
    other = Result("plain", 7, [10, 20, 30], metrics([3, 2, 1]))
    with pytest.raises(ConfigurationError, match=r"classes=\[10, 20, 30\]"):
        make([*results, other])


def test_a_result_needs_metrics_of_each_phase():
    with pytest.raises(ConfigurationError, match="seed 4: head has 2 entries"):
        Result("plain", 4, CLASSES, metrics([2, 1]))
    with pytest.raises(ConfigurationError, match="nearest_mean has 1 entries"):
        Result("plain", 4, CLASSES, metrics([3, 2, 1]), metrics([1]))
    with pytest.raises(ConfigurationError, match="at least one phase"):
        Result("plain", 4, [], [])


def test_unknown_names_are_refused(results):
    with pytest.raises(ConfigurationError, match=r"reference='icarl'.*'plain'"):
        paired_table(results, "icarl")
    with pytest.raises(ConfigurationError, match="nothing to compare with 'plain'"):
        paired_table([results[4]])
    with pytest.raises(ConfigurationError, match=r"rule='nme'.*nearest_mean"):
        plot_accuracy(results, rule="nme")
    with pytest.raises(ConfigurationError, match="reported='nme'"):
        results_table(results, reported="nme")
    with pytest.raises(ConfigurationError, match="rule='nearest_mean'"):
        plot_accuracy([results[3]], rule="nearest_mean")


WITHOUT_PACKAGES = """
import sys

for name in {blocked}:
    sys.modules[name] = None
from aanets_plugin.experiments import Result, accuracy_table, plot_accuracy, results_table
from aanets_plugin.experiments.results import write_summary

row = dict.fromkeys(("all", "old", "new", "base", "average", "forgetting"), 50.0)
results = [Result("plain", 0, [5], [row]), Result("AANets, learned α", 0, [5], [row])]
print(results_table(results))
print(accuracy_table(results))
write_summary("summary.md", results, heading="h", command="c")
plot_accuracy(results, "accuracy.png")
"""
OPTIONAL = [
    "accelerate",
    "avalanche",
    "continuum",
    "scipy",
    "sklearn",
    "timm",
    "torchvision",
    "tqdm",
]


@pytest.mark.parametrize("matplotlib", [True, False])
def test_results_need_torch_alone_and_a_plot_needs_matplotlib(matplotlib, tmp_path):
    blocked = OPTIONAL if matplotlib else [*OPTIONAL, "matplotlib"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES.format(blocked=blocked)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(aanets_plugin.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("| AANets, learned α | head |") == 2, done.stderr
    assert (tmp_path / "summary.md").exists()
    assert (tmp_path / "accuracy.png").exists() == matplotlib
    assert done.returncode == (0 if matplotlib else 1)
    assert ("ModuleNotFoundError: import of matplotlib halted" in done.stderr) != matplotlib
