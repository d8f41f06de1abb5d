"""The picture of α over the phases, as numbers in a figure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aanets_plugin import AlphaRecord, ConfigurationError, plot_alpha

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
    lines = [line for line in axes.lines if line.get_label().startswith("_")]
    return [line.get_xdata()[0] for line in lines]


def test_a_png_is_written(history, tmp_path):
    path = tmp_path / "alpha.png"
    plot_alpha(history)
    assert not path.exists()
    plot_alpha(history, path)
    assert path.read_bytes().startswith(PNG)


def test_each_level_has_a_panel_with_a_plastic_and_a_stable_curve(history):
    figure = plot_alpha(history)
    assert [axes.get_title() for axes in figure.axes] == ["layer1", "layer2"]
    for axes in figure.axes:
        assert list(curves(axes)) == ["plastic", "stable"]
        plastic, stable = curves(axes).values()
        assert list(plastic.get_xdata()) == [1, 2, 3, 4, 5, 6]
        assert list(plastic.get_ydata()) == [0.5, 0.6, 0.8, 0.7, 0.4, 0.2]
        assert list(stable.get_ydata()) == pytest.approx([0.5, 0.4, 0.2, 0.3, 0.6, 0.8])
        assert plastic.get_color() != stable.get_color()
    legend = [text.get_text().split()[0] for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["plastic", "stable"]


def test_levels_with_other_weights_have_other_curves():
    """The control: a panel shows its own level."""
    records = [AlphaRecord(1, 0, "a", (0.2, 0.8), 1.0), AlphaRecord(1, 0, "b", (0.6, 0.4), 1.0)]
    first, second = plot_alpha(records).axes
    assert list(curves(first)["plastic"].get_ydata()) == [0.2]
    assert list(curves(second)["plastic"].get_ydata()) == [0.6]


def test_branches_in_between_are_numbered():
    axes = plot_alpha([AlphaRecord(1, 0, "a", (0.1, 0.2, 0.3, 0.4), None)]).axes[0]
    labels = [line.get_label() for line in axes.lines]
    assert labels[1:3] == ["branch 1", "branch 2"]
    assert labels[0].startswith("plastic")
    assert labels[3].startswith("stable")


def test_a_line_stands_between_the_last_update_of_a_phase_and_the_first_of_the_next(history):
    for axes in plot_alpha(history).axes:
        assert boundaries(axes) == [3.5, 5.5]
    one_phase = [record for record in history if record.phase == 1]
    assert boundaries(plot_alpha(one_phase).axes[0]) == []


def test_smoothing_is_a_running_mean_with_that_share_of_the_past(history):
    """By hand, share 0.5: 0.5, (0.5 + 0.6) / 2 = 0.55, (0.55 + 0.8) / 2 = 0.675, …"""
    smooth = curves(plot_alpha(history, smoothing=0.5).axes[0])["plastic"].get_ydata()
    assert list(smooth) == pytest.approx([0.5, 0.55, 0.675, 0.6875, 0.54375, 0.371875], abs=1e-12)
    strong = curves(plot_alpha(history, smoothing=0.8).axes[0])["plastic"].get_ydata()
    assert list(strong)[:3] == pytest.approx([0.5, 0.52, 0.576], abs=1e-12)


def test_smoothed_weights_still_sum_to_one(history):
    plastic, stable = curves(plot_alpha(history, smoothing=0.8).axes[0]).values()
    sums = [a + b for a, b in zip(plastic.get_ydata(), stable.get_ydata(), strict=True)]
    assert sums == pytest.approx([1.0] * 6, abs=1e-12)


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
