"""The accuracy plot from made-up numbers."""

from __future__ import annotations

import sys

import pytest

from aanets_plugin.experiments import (
    Result,
    plot_accuracy,
)
from tests.experiments.results_setup import CLASSES, FIXED, LEARNED, made_up_results, metrics


@pytest.fixture
def results():
    return made_up_results()


@pytest.fixture
def axes(results):
    pytest.importorskip("matplotlib")
    return plot_accuracy(results).axes[0]


def curves(axes):
    return {line.get_label().rsplit(" (", 1)[0]: line for line in axes.lines}


def test_a_curve_is_the_mean_over_seeds_at_the_classes_seen(axes):
    assert list(curves(axes)) == ["plain", LEARNED, FIXED, "upper bound"]
    learned = curves(axes)[LEARNED]
    assert list(learned.get_xdata()) == pytest.approx(CLASSES, abs=1)
    assert list(learned.get_ydata()) == [73, 64, 55]
    assert learned.get_label().endswith("(64.0)")
    assert axes.get_ylabel() == "accuracy on all classes seen (%)"


def test_equal_curves_do_not_cover_each_other():
    pytest.importorskip("matplotlib")
    same = [Result(arm, 0, CLASSES, metrics([70, 60, 50])) for arm in ("plain", LEARNED, FIXED)]
    lines = curves(plot_accuracy(same).axes[0]).values()
    for places in zip(*(line.get_xdata() for line in lines), strict=True):
        assert len(set(places)) == 3
        assert max(places) - min(places) < 2, "they stay at their phase"


def test_the_band_of_three_seeds_is_the_95_percent_interval():
    """By hand for 60, 64, 68: mean 64, deviation 4, half width 4.303 * 4 / sqrt(3) = 9.94."""
    pytest.importorskip("matplotlib")
    three = [Result("plain", s, CLASSES, metrics([70, 60 + 4 * s, 50])) for s in range(3)]
    figure = plot_accuracy(three)
    (band,) = figure.axes[0].collections
    at_60 = [y for x, y in band.get_paths()[0].vertices if x == 60]
    assert min(at_60) == pytest.approx(64 - 9.94, abs=0.01)
    assert max(at_60) == pytest.approx(64 + 9.94, abs=0.01)
    assert "95% interval" in figure.legends[0].get_title().get_text()


def test_two_seeds_are_points_and_one_seed_has_neither():
    pytest.importorskip("matplotlib")
    two = [Result("plain", s, CLASSES, metrics([70, 60 + 4 * s, 50])) for s in range(2)]
    figure = plot_accuracy(two)
    (points,) = figure.axes[0].collections
    assert [y for x, y in points.get_offsets().tolist() if x == 60] == [60, 64]
    assert "single seeds" in figure.legends[0].get_title().get_text()
    assert not plot_accuracy(two[:1]).axes[0].collections


def test_the_other_rule_has_other_curves(results, axes):
    other = curves(plot_accuracy(results, rule="nearest_mean").axes[0])
    assert list(other) == ["plain", LEARNED, FIXED]
    assert list(other["plain"].get_ydata()) == [69, 59, 49]
    assert list(curves(axes)["plain"].get_ydata()) == [71, 61, 51]


def test_plain_is_grey_the_upper_bound_dashed_and_aanets_in_colour(axes):
    from matplotlib.colors import to_rgb

    lines = curves(axes)
    assert {arm: line.get_linestyle() for arm, line in lines.items()} == {
        "plain": "-",
        LEARNED: "-",
        FIXED: "-",
        "upper bound": "--",
    }
    colors = {arm: to_rgb(line.get_color()) for arm, line in lines.items()}
    shades = {arm: max(color) - min(color) for arm, color in colors.items()}
    assert max(shades["plain"], shades["upper bound"]) < 0.1
    assert min(shades[LEARNED], shades[FIXED]) > 0.2
    assert len({line.get_color() for line in lines.values()}) == 4
    assert len({line.get_marker() for line in lines.values()}) == 4


def test_an_arm_keeps_its_colour_when_others_are_missing(results, axes):
    alone = plot_accuracy([r for r in results if r.arm == FIXED]).axes[0]
    assert curves(alone)[FIXED].get_color() == curves(axes)[FIXED].get_color()


@pytest.mark.parametrize(("phases", "step"), [(1, 1), (3, 1), (11, 1), (12, 2), (24, 3), (26, 5)])
def test_ticks_stand_at_phases_and_the_last_one_is_labelled(phases, step):
    pytest.importorskip("matplotlib")
    classes = [50 + 2 * phase for phase in range(phases)]
    result = Result("plain", 0, classes, metrics([float(90 - i) for i in range(phases)]))
    axes = plot_accuracy([result]).axes[0]
    ticks = list(axes.get_xticks())
    assert ticks == classes[::-1][::step][::-1]
    assert sorted({*ticks, *axes.get_xticks(minor=True)}) == classes
    axes.figure.canvas.draw()
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(tick) for tick in ticks]


def test_the_legend_covers_no_curve(results):
    pytest.importorskip("matplotlib")
    figure = plot_accuracy(results, title="CIFAR-100")
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert not box.overlaps(figure.axes[0].get_tightbbox())
    assert figure.bbox.containsx(box.x0)
    assert figure.bbox.containsx(box.x1)
    assert figure.bbox.containsy(box.y0)


def test_a_picture_is_written_if_a_path_is_given(results, tmp_path):
    pytest.importorskip("matplotlib")
    plot_accuracy(results)
    assert list(tmp_path.iterdir()) == []
    plot_accuracy(results, tmp_path / "accuracy.png", title="any")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_keeps_off_the_global_state_of_pyplot(results, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert plot_accuracy(results).axes
