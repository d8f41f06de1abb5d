"""The area under the accuracy-memory curve, and the runs of a curve."""

from __future__ import annotations

import pytest

from aanets_plugin import ConfigurationError
from aanets_plugin.experiments.curve import MemoryCurve, Point, area, areas, as_csv, as_markdown
from aanets_plugin.experiments.paper.cells import Grid
from aanets_plugin.experiments.paper.scales import scale_of


def point(arm, memory, *averages):
    return Point(arm, 1, memory, 1, 1, list(averages), [a - 10 for a in averages], [0.5] * 2)


PLAIN = [point("plain", 1, 40.0, 42.0), point("plain", 3, 60.0, 62.0)]


def test_the_area_is_the_mean_height_of_straight_lines():
    assert area([1, 2, 4], [10, 30, 30], 1, 4) == pytest.approx((20 * 1 + 30 * 2) / 3)
    assert area([1, 2], [10, 30], 2, 2) is None


def test_arms_are_compared_where_both_have_a_curve():
    """The curve of AANets starts at more memory, so that the cheap end of plain does not count."""
    aanets = [point("AANets", 2, 55.0, 57.0), point("AANets", 4, 65.0, 67.0)]
    found = areas(PLAIN + aanets)
    assert found["plain"] == (pytest.approx(56.0), pytest.approx(46.0))  # from 51 to 61
    assert found["AANets"] == (pytest.approx(58.5), pytest.approx(48.5))  # from 56 to 61


def test_curves_that_do_not_meet_have_no_area():
    far = [point("AANets", 7, 55.0, 57.0), point("AANets", 8, 65.0, 67.0)]
    assert areas(PLAIN + far)["plain"] == (None, None)
    assert "no common memory" in as_markdown(PLAIN + far)
    assert len(as_csv(PLAIN + far).splitlines()) == 1 + 4 * 2


def digits_grid(tmp_path, phases=(2,)):
    return Grid(scale_of("digits"), [], phases, [0, 1], output=tmp_path)


def test_a_curve_shares_its_runs_with_the_tables_and_its_first_phases(tmp_path):
    curve = MemoryCurve(digits_grid(tmp_path), "icarl", ["plain", "learned"], [10, 5])
    names = [plan.name for plan in curve.plans]
    assert names[:4] == [
        "icarl-plain-N2-seed0-m5",
        "icarl-learned-N2-seed0-m5",
        "icarl-plain-N2-seed0",
        "icarl-learned-N2-seed0",
    ]
    assert [plan.settings.memory.per_class for plan in curve.plans[:4]] == [5, 5, 10, 10]
    assert len({plan.first_phase for plan in curve.plans}) == 2  # one for each seed


@pytest.mark.parametrize(
    ("budgets", "phases", "message"),
    [
        ([5], [2], "budgets 5: must be two or more numbers"),
        ([0, 5], [2], "budgets 0 5: must be two or more numbers of exemplars per class, each ≥ 1"),
        ([5, 10], [2, 5], "phases 2 5: a curve has one number of phases"),
    ],
)
def test_bad_input(tmp_path, budgets, phases, message):
    with pytest.raises(ConfigurationError, match=message):
        MemoryCurve(digits_grid(tmp_path, phases), "lucir", ["plain"], budgets)
