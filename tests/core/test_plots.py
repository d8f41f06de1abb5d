"""The picture of α over the phases, as numbers in a figure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aanets_plugin import AlphaRecord, ConfigurationError, plot_alpha
from aanets_plugin.plot_style import INK, PLASTIC, to_svg

pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"
UPDATES = [(1, 0, 0.5), (1, 1, 0.6), (1, 2, 0.8), (2, 0, 0.7), (2, 1, 0.4), (3, 0, 0.2)]


@pytest.fixture
def history():
    """Six updates of two levels over three phases."""
    return [
        AlphaRecord(phase, epoch, level, (plastic, 1 - plastic), 1.0)
        for phase, epoch, plastic in UPDATES
        for level in ("layer1", "layer2")
    ]


def curves(axes):
    return {
        line.get_label().split()[0]: line
        for line in axes.lines
        if not line.get_label().startswith("_")
    }


def boundaries(axes):
    """The places of the vertical lines."""
    places = [line.get_xdata() for line in axes.lines if line.get_label().startswith("_")]
    return [first for first, last in places if first == last]


@pytest.mark.parametrize(("suffix", "start"), [("png", PNG), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_a_figure_is_written_in_the_format_of_the_suffix(history, tmp_path, suffix, start):
    path = tmp_path / f"alpha.{suffix}"
    plot_alpha(history)
    assert not path.exists()
    plot_alpha(history, path)
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_figure_drawn_again_has_the_same_bytes(history, tmp_path, suffix):
    first, second = (tmp_path / f"{name}.{suffix}" for name in "ab")
    plot_alpha(history, first)
    plot_alpha(history, second)
    assert first.read_bytes() == second.read_bytes()


def test_each_level_has_a_panel_with_the_plastic_weight_from_its_initial_value(history):
    figure = plot_alpha(history)
    assert [axes.get_title() for axes in figure.axes] == ["layer1", "layer2"]
    for axes in figure.axes:
        assert list(curves(axes)) == ["plastic"], "the stable weight would be its mirror image"
        plastic = curves(axes)["plastic"]
        assert list(plastic.get_xdata()) == [0, 1, 2, 3, 4, 5, 6]
        assert list(plastic.get_ydata()) == [0.5, 0.5, 0.6, 0.8, 0.7, 0.4, 0.2]


def test_the_curve_starts_where_it_is_told(history):
    axes = plot_alpha(history, initial=(0.9, 0.1)).axes[0]
    assert curves(axes)["plastic"].get_ydata()[0] == 0.9
    with pytest.raises(ConfigurationError, match=r"initial=\(0.2, 0.3, 0.5\): must have .* 2 bran"):
        plot_alpha(history, initial=(0.2, 0.3, 0.5))


def test_levels_with_other_weights_have_other_curves():
    """The control: a panel shows its own level."""
    records = [AlphaRecord(1, 0, "a", (0.2, 0.8), 1.0), AlphaRecord(1, 0, "b", (0.6, 0.4), 1.0)]
    first, second = plot_alpha(records).axes
    assert list(curves(first)["plastic"].get_ydata()) == [0.5, 0.2]
    assert list(curves(second)["plastic"].get_ydata()) == [0.5, 0.6]


def test_more_than_two_branches_have_a_curve_each():
    axes = plot_alpha([AlphaRecord(1, 0, "a", (0.1, 0.2, 0.3, 0.4), None)]).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[1:3] == ["branch 1", "branch 2"]
    assert labels[0].startswith("plastic")
    assert labels[3].startswith("stable")
    colors = {line.get_color() for line in curves(axes).values()}
    assert len(colors) == len(curves(axes))


@pytest.mark.parametrize(("moved", "least"), [(0.001, 0.1), (0.4, 0.4)])
def test_the_y_axis_shows_the_movement(moved, least):
    axes = plot_alpha([AlphaRecord(1, 0, "a", (0.5 + moved, 0.5 - moved), None)]).axes[0]
    low, high = axes.get_ylim()
    assert low < 0.5 < 0.5 + moved < high
    assert least - 1e-9 <= high - low < 1.3 * least


def test_a_line_stands_between_phases_and_their_numbers_below_the_axis(history):
    figure = plot_alpha(history)
    figure.canvas.draw()
    for axes in figure.axes:
        assert boundaries(axes) == [3.5, 5.5]
        assert list(axes.get_xticks()) == [2, 4.5, 6]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "3"]
    one_phase = [record for record in history if record.phase == 1]
    assert boundaries(plot_alpha(one_phase).axes[0]) == []


def test_smoothing_is_a_running_mean_with_that_share_of_the_past(history):
    """By hand, share 0.5, from 0.5 on: 0.5, (0.5 + 0.6) / 2 = 0.55, (0.55 + 0.8) / 2 = 0.675, …"""
    smooth = curves(plot_alpha(history, smoothing=0.5).axes[0])["plastic"].get_ydata()
    expected = [0.5, 0.5, 0.55, 0.675, 0.6875, 0.54375, 0.371875]
    assert list(smooth) == pytest.approx(expected, abs=1e-12)
    strong = curves(plot_alpha(history, smoothing=0.8).axes[0])["plastic"].get_ydata()
    assert list(strong)[1:4] == pytest.approx([0.5, 0.52, 0.576], abs=1e-12)


def test_an_svg_for_a_page_takes_the_colour_of_its_text(history):
    text = to_svg(plot_alpha(history))
    assert text.startswith("<svg")
    assert "currentColor" in text
    assert INK not in text
    assert PLASTIC in text, "the control: other colours stay"


def test_an_empty_history_is_refused():
    with pytest.raises(ConfigurationError, match="history is empty"):
        plot_alpha([])


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 2.0, float("nan")])
def test_smoothing_outside_its_range_is_refused(history, smoothing):
    with pytest.raises(ConfigurationError, match=f"smoothing={smoothing}"):
        plot_alpha(history, smoothing=smoothing)


@pytest.mark.slow
def test_matplotlib_is_imported_by_a_plot_and_not_by_the_package():
    code = (
        "import sys, aanets_plugin as a\n"
        "assert 'matplotlib' not in sys.modules, 'imported with the package'\n"
        "a.plot_alpha([a.AlphaRecord(1, 0, 'layer1', (0.5, 0.5), None)])\n"
        "assert 'matplotlib' in sys.modules, 'the control: a plot needs it'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
