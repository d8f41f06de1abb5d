"""The paper's numbers, against what its text says about them."""

from __future__ import annotations

from statistics import fmean

import pytest

from aanets_plugin.experiments.paper import numbers
from aanets_plugin.experiments.paper.grids import TABLES


def mean(table, row, dataset):
    return fmean(numbers.accuracy(table, row, dataset, n).value for n in numbers.PHASES)


@pytest.mark.parametrize(
    ("table", "row", "reference", "dataset", "gain"),
    [
        # "LUCIR w/ AANets and Mnemonics w/ AANets respectively gains 4.9% and 3.3%"
        ("2", "lucir-learned", "lucir-plain", "cifar100", 4.9),
        ("2", "mnemonics-learned", "mnemonics-plain", "cifar100", 3.3),
        # "scaling"+"frozen" gains an average of 4.8% over LUCIR for the ImageNet-Subset
        ("1", "5", "1", "imagenet-subset", 4.8),
    ],
)
def test_gains_are_those_of_the_text(table, row, reference, dataset, gain):
    found = mean(table, row, dataset) - mean(table, reference, dataset)
    assert round(found, 1) == gain


def test_the_strict_budget_costs_0_3_points_with_5_phases():
    for dataset in ("cifar100", "imagenet-subset"):
        both = [numbers.accuracy("1", row, dataset, 5).value for row in ("3", "8")]
        assert round(both[0] - both[1], 1) == 0.3


def test_memory_overheads_are_those_of_the_text():
    for dataset, overhead in (("cifar100", 26), ("imagenet-subset", 14.5)):
        plain, learned = (
            float(numbers.COSTS["1"][row][dataset].split()[0].removesuffix("MB"))
            for row in ("1", "3")
        )
        assert 100 * (learned / plain - 1) == pytest.approx(overhead, abs=0.5)


def test_tables_agree_where_they_repeat_each_other():
    """Rows 1 and 3 of Table 1 are LUCIR in Table 2; row 8 is LUCIR in Table S2."""
    for dataset in ("cifar100", "imagenet-subset"):
        for n in numbers.PHASES:
            for row, other in (("1", "plain"), ("3", "learned"), ("8", "strict")):
                there = numbers.accuracy("s2", f"lucir-{other}", dataset, n)
                assert numbers.accuracy("1", row, dataset, n).value == there.value


def test_every_row_has_the_numbers_of_its_table():
    for table in TABLES.values():
        assert [row.key for row in table.rows if row.key not in numbers.TABLES[table.name]] == []
        assert len(table.rows) == len(numbers.TABLES[table.name])
        if table.costs:
            assert [row.key for row in table.rows] == list(numbers.COSTS[table.name])


@pytest.mark.parametrize(
    ("table", "row", "dataset", "phases", "text"),
    [
        ("2", "lwf", "cifar100", 5, "49.59"),
        ("2", "podnet-learned", "imagenet", 25, "61.78±0.61"),
        ("s1", "half-plain", "cifar100", 5, "54.3"),
        ("s1", "equal-strict", "imagenet-subset", 25, "56.8"),
        ("s2", "icarl-strict", "cifar100", 5, "63.91±0.52"),
        ("s2", "podnet-strict", "imagenet", 25, "61.01±0.97"),
        ("s3", "3", "cifar100", 5, "65.13"),
        ("s3", "9", "imagenet-subset", 25, "70.30"),
    ],
)
def test_corners_of_the_tables(table, row, dataset, phases, text):
    assert numbers.accuracy(table, row, dataset, phases).text == text


def test_a_cell_that_the_paper_does_not_have_is_none():
    assert numbers.accuracy("2", "tpcil", "cifar100", 25) is None
    assert numbers.accuracy("1", "1", "imagenet", 5) is None
    assert numbers.accuracy("1", "1", "cifar100", 3) is None
