"""The paper's Figure 5 from the folder of a run."""

import numpy as np
import pytest
import torch

pytest.importorskip("continuum")
pytest.importorskip("pytorch_grad_cam")

from aanets_plugin import ConfigurationError, grad_cam
from aanets_plugin.experiments import AANets, load_run
from aanets_plugin.experiments.command import main
from aanets_plugin.experiments.grad_cam_figures import Examples, draw_run, plot_all_phases
from tests.experiments.run_setup import small_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    small_run(folder, aanets=AANets(), keep_phases=True, report=True)
    return folder


def test_examples_are_test_images_of_the_first_a_middle_and_the_last_phase(folder):
    examples = Examples.load(folder)
    assert examples.phases == [0, 1, 2]
    assert examples.labels == [0, 6, 8], "the first class of each phase"
    assert examples.inputs.shape == examples.pixels.shape == (3, 3, 8, 8)
    assert 0 <= examples.pixels.min() <= examples.pixels.max() <= 1


def test_figure_5_has_the_maps_of_the_final_network(folder, capsys):
    main(["figure", "5", "--run", str(folder), "--level", "layer2"])
    files = capsys.readouterr().out.split()
    assert [name.rsplit("/", 1)[1] for name in files] == [
        "figure5.png",
        "figure5.pdf",
        "figure5-phases.png",
        "figure5-phases.pdf",
    ]


def test_all_phases_are_shown_for_the_first_image(folder):
    examples = Examples.load(folder)
    figure = plot_all_phases(folder, examples, last=2)
    assert [a.get_title() for a in figure.axes[:4]] == ["image", "phase 0", "phase 1", "phase 2"]
    assert [figure.axes[4 * row].get_ylabel() for row in range(3)] == [
        "plastic",
        "stable",
        "aggregated",
    ]
    net = load_run(folder, 1).net
    expected = grad_cam(net, examples.inputs[:1], examples.labels[:1])["stable"][0]
    shown = figure.axes[4 + 2].images[1].get_array()
    assert np.allclose(shown, expected.numpy())
    assert not torch.equal(expected, torch.zeros_like(expected)), "the control"


def test_a_run_without_examples_and_a_missing_folder_are_refused(folder, tmp_path, capsys):
    with pytest.raises(ConfigurationError, match="finished run with AANets"):
        draw_run(tmp_path)
    for line in (["figure", "5"], ["figure", "4", "--run", str(folder)]):
        with pytest.raises(SystemExit) as end:
            main(line)
        assert end.value.code == 2
        assert "--run is needed for figure 5, and for no other one" in capsys.readouterr().err
