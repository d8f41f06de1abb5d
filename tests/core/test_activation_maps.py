"""Grad-CAM of each branch, against the formula of its paper written out."""

import copy

import pytest
import torch
import torch.nn.functional as F

from aanets_plugin import (
    ConfigurationError,
    UnsupportedModelError,
    convert_to_aanet,
    grad_cam,
    levels,
    plot_grad_cam,
    thaw_base,
)
from aanets_plugin.baselines import LUCIR, IncrementalNet, PODNet, resnet20

pytest.importorskip("pytorch_grad_cam")


def converted(model, **options):
    convert_to_aanet(model, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        for level in levels(model):
            level.alpha.copy_(torch.tensor([0.4, 0.6]))
    return model


def by_formula(model, images, classes, place):
    """relu(Σ_c mean gradient of channel c · activation of channel c), scaled to [0, 1]."""
    model = copy.deepcopy(model).eval()
    seen = {}

    def keep(_, __, output):
        output.retain_grad()
        seen["out"] = output

    place(model).register_forward_hook(keep)
    logits = model(images.clone().requires_grad_())
    logits.gather(1, torch.tensor(classes).unsqueeze(1)).sum().backward()
    out = seen["out"]
    cam = F.relu((out.grad.mean((2, 3), keepdim=True) * out).sum(1)).detach()
    low = cam.amin((1, 2), keepdim=True)
    return (cam - low) / (cam.amax((1, 2), keepdim=True) - low + 1e-7)


@pytest.mark.parametrize("blocks", [("all", "scaling"), ("all", "frozen")])
def test_maps_are_those_of_the_formula_for_each_branch(blocks):
    model, images = converted(resnet20(num_classes=4), blocks=blocks), torch.randn(2, 3, 12, 12)
    maps = grad_cam(model, images, [3, 1], level="layer1")  # its maps have the size of the images
    places = {
        "plastic": lambda m: m.layer1.branches[0],
        "stable": lambda m: m.layer1.branches[1],
        "aggregated": lambda m: m.layer1,
    }
    assert list(maps) == list(places)
    for name, place in places.items():
        expected = by_formula(model, images, [3, 1], place)
        assert torch.allclose(maps[name], expected, atol=2e-3)  # it adds 1e-7 to the maximum
    assert not torch.allclose(maps["plastic"], maps["stable"], atol=1e-2), "the control"
    other = grad_cam(model, images, [0, 1], level="layer1")
    assert not torch.allclose(other["plastic"][0], maps["plastic"][0], atol=1e-2), "another class"


def test_the_model_and_its_gradients_stay_as_they_were():
    model, images = converted(resnet20(num_classes=4)).train(), torch.randn(2, 3, 12, 12)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model.state_dict())
    grad_cam(model, images)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(bool((p.grad == 1).all()) and p.requires_grad for p in model.parameters())
    assert images.grad is None
    assert not images.requires_grad
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("method", [LUCIR(), PODNet()], ids=["cosine", "proxies"])
def test_heads_of_the_methods_and_the_last_level_by_default(method):
    net = IncrementalNet(converted(resnet20()), method.head(64, 5))
    net.backbone.fc = torch.nn.Identity()
    maps = grad_cam(net, torch.randn(3, 3, 16, 16))
    assert {tuple(values.shape) for values in maps.values()} == {(3, 16, 16)}
    assert all(values.min() >= 0 and values.max() <= 1 for values in maps.values())


def test_torchvision_and_timm():
    timm, models = (pytest.importorskip(name) for name in ("timm", "torchvision.models"))
    for model in (models.resnet18(num_classes=3), timm.create_model("resnet10t", num_classes=3)):
        maps = grad_cam(converted(model), torch.randn(1, 3, 32, 32), [2], level=0)
        assert maps["stable"].shape == (1, 32, 32)
        assert maps["stable"].max() > 0.5


def test_the_base_phase_has_one_map():
    model = converted(resnet20(num_classes=3))
    thaw_base(model)
    assert list(grad_cam(model, torch.randn(1, 3, 12, 12), [0])) == ["aggregated"]


def test_a_figure_has_a_row_per_image_and_a_column_per_map(tmp_path):
    images = torch.rand(2, 1, 8, 8)
    maps = {"plastic": torch.rand(2, 8, 8), "stable": torch.rand(2, 8, 8)}
    figure = plot_grad_cam(images, maps, tmp_path / "cam.png", titles=["seven", "nine"])
    assert (tmp_path / "cam.png").stat().st_size > 1000
    assert [panel.get_title() for panel in figure.axes[:3]] == ["image", "plastic", "stable"]
    assert [figure.axes[i].get_ylabel() for i in (0, 3)] == ["seven", "nine"]
    assert [len(panel.images) for panel in figure.axes] == [1, 2, 2, 1, 2, 2]


def test_what_cannot_be_drawn_is_refused():
    model, images = converted(resnet20(num_classes=4)), torch.randn(2, 3, 12, 12)
    with pytest.raises(ConfigurationError, match="level='layer9': must be one of"):
        grad_cam(model, images, level="layer9")
    with pytest.raises(ConfigurationError, match="level=3: must be"):
        grad_cam(model, images, level=3)
    with pytest.raises(ConfigurationError, match="classes has 1 entries for 2 images"):
        grad_cam(model, images, [0])
    with pytest.raises(UnsupportedModelError, match="convert_to_aanet"):
        grad_cam(resnet20(), images)
