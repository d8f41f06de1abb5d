"""The residual networks of torchvision and timm, found and converted without a hint.

The stages of every one of them are checked on the meta device, where weights cost nothing; the
numbers of some small ones. AANETS_EVERY_NETWORK=1 in the environment checks the numbers of all of
them, which takes long; a network that does not fit in memory is then skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from aanets_plugin import UnsupportedModelError, convert_to_aanet, levels
from aanets_plugin.scaling import scaled_layers
from tests.networks import relative_error, shake

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

MODULES = ("resnet", "resnetv2", "res2net", "resnest", "sknet", "senet", "regnet")
TORCHVISION = [
    name
    for name in torchvision.models.list_models()
    if torchvision.models.get_model_builder(name).__module__ == "torchvision.models.resnet"
]
TIMM = [name for module in MODULES for name in timm.list_models(module=module)]

SMALL = (
    "torchvision/resnet18",
    "torchvision/resnext50_32x4d",
    "test_resnet",
    "resnet10t",
    "resnetblur18",
    "ecaresnet26t",
    "resnetv2_18",
    "res2net50_14w_8s",
    "resnest14d",
    "skresnet18",
    "legacy_seresnet18",
    "regnetx_002",
    "regnety_002",
    "regnetz_005",
)
BEYOND = (
    "convnext_atto",
    "nf_regnet_b0",
    "test_nfnet",
    "gernet_s",
    "regnetz_b16",
    "cspresnet50",
    "cs3darknet_s",
    "darknet17",
)
EVERY = [f"torchvision/{name}" for name in TORCHVISION] + TIMM
NUMERIC = [*(EVERY if os.environ.get("AANETS_EVERY_NETWORK") == "1" else SMALL), *BEYOND]

ROUNDING = 1e-4  # α-weighted sums round differently, and a deep network carries that on
CHANGE = 1e-3  # what a real change exceeds: ten times what rounding may do


def build(name: str) -> nn.Module:
    if name.startswith("torchvision/"):
        return torchvision.models.get_model(name.removeprefix("torchvision/"), num_classes=5)
    return timm.create_model(name, num_classes=5)


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return build(name)


def trained(name: str) -> nn.Module:
    """The network in eval mode, with no weight left at an initial 0, 1 or 1e-6, and with statistics
    of images, without which a deep network's output hardly depends on its input."""
    if name not in (*SMALL, *BEYOND):
        skip_if_too_large(name)
    net = shake(build(name))
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    with torch.no_grad():
        for key, parameter in net.named_parameters():
            if parameter.dim() <= 1 and not key.endswith("bias"):
                parameter.uniform_(0.5, 1.5)
        for norm in norms:
            norm.momentum = 1.0
        net.train()(images(4))
        for norm in norms:
            norm.momentum = 0.1
    return net.eval()


def skip_if_too_large(name: str) -> None:
    free = memory_available()
    # The plastic branch, the stable branch, its product with φ, and some gradients.
    needed = 4 * 3.5 * sum(parameter.numel() for parameter in on_meta(name).parameters())
    if needed > free:
        pytest.skip(f"needs {needed / 2**30:.1f}GB of memory, {free / 2**30:.1f}GB are free")


def memory_available() -> int:
    """In bytes; what the system holds as a cache counts as available where it says so."""
    info = Path("/proc/meminfo")
    if info.exists():
        return 1024 * int(info.read_text().split("MemAvailable:")[1].split()[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 64, 64)


def stages_by_timm(net: nn.Module) -> list[str]:
    """Every module that timm itself gives features from, without the stem, which is the first."""
    _, *stages = (entry["module"] for entry in net.feature_info)
    return stages


def level_names(net: nn.Module) -> list[str]:
    return [level.name for level in levels(net)]


def test_the_lists_are_not_empty():
    assert len(TORCHVISION) >= 10
    for module in MODULES:
        assert len(timm.list_models(module=module)) >= 5, module


@pytest.mark.parametrize("name", TORCHVISION)
def test_stages_of_torchvision_are_found(name):
    net = convert_to_aanet(on_meta(f"torchvision/{name}"))

    assert level_names(net) == ["layer1", "layer2", "layer3", "layer4"]


@pytest.mark.parametrize("name", TIMM)
def test_stages_of_timm_are_found(name):
    net = on_meta(name)
    stages = stages_by_timm(net)

    assert level_names(convert_to_aanet(net)) == stages
    assert len(stages) >= 4
    assert all(parameter.is_meta for parameter in net.parameters())


@pytest.mark.parametrize("name", NUMERIC)
def test_conversion_preserves_the_function(name):
    net, x = trained(name), images()
    with torch.no_grad():
        before = net(x)
        convert_to_aanet(net)
        assert relative_error(net(x), before) < ROUNDING
        for level in levels(net):
            level.alpha.copy_(torch.tensor([0.3, 0.7]))
        assert relative_error(net(x), before) < ROUNDING

        assert before.isfinite().all()
        assert relative_error(net(images()), before) > CHANGE  # the output is not a constant


@pytest.mark.parametrize("name", NUMERIC)
def test_each_stable_branch_runs_and_counts(name):
    net, x = convert_to_aanet(trained(name)), images()
    runs = []
    for level in levels(net):
        level.stable.register_forward_hook(lambda *_, name=level.name: runs.append(name))
    with torch.no_grad():
        before = net(x)
        assert runs == level_names(net)
        assert len(runs) >= 3
        for level in levels(net):
            deltas = [layer.delta for layer in scaled_layers(level.stable)]
            for delta in deltas:
                delta.uniform_(-1, 1)
            assert relative_error(net(x), before) > CHANGE, level.name
            for delta in deltas:
                delta.zero_()
            assert relative_error(net(x), before) < ROUNDING, level.name


@pytest.mark.parametrize("name", NUMERIC)
def test_training_reaches_both_branches(name):
    net = convert_to_aanet(trained(name)).train()
    names = {id(parameter): key for key, parameter in net.named_parameters()}
    reached: dict[str, bool] = {}

    def note(parameter: nn.Parameter) -> None:
        reached[names[id(parameter)]] = bool(parameter.grad.count_nonzero())
        parameter.grad = None  # the largest networks' gradients do not fit in memory together

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    F.cross_entropy(net(images(4)), torch.arange(4)).backward()

    assert set(reached) == set(names.values())
    for level in levels(net):
        for branch in (level.plastic, level.stable):
            assert any(reached[names[id(p)]] for p in branch.parameters()), level.name
        kernels = [layer for layer in level.stable.modules() if isinstance(layer, nn.Conv2d)]
        assert not any(isinstance(layer.weight, nn.Parameter) for layer in kernels)


def plain_row() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
    )


NO_STAGE = {
    "torchvision vgg11": lambda: torchvision.models.vgg11(),
    "torchvision alexnet": lambda: torchvision.models.alexnet(),
    "timm vgg11": lambda: timm.create_model("vgg11"),
    "timm vit_tiny_patch16_224": lambda: timm.create_model("vit_tiny_patch16_224"),
    "a row of convolutions": plain_row,
    "a linear layer": lambda: nn.Linear(8, 5),
}


@pytest.mark.parametrize("network", NO_STAGE)
def test_a_network_without_residual_stage_is_refused_and_untouched(network):
    with torch.device("meta"):
        net = NO_STAGE[network]()
    modules = [(name, module, type(module)) for name, module in net.named_modules()]
    state = [(key, id(value)) for key, value in net.state_dict(keep_vars=True).items()]

    with pytest.raises(UnsupportedModelError, match=type(net).__name__):
        convert_to_aanet(net)

    assert [(name, module, type(module)) for name, module in net.named_modules()] == modules
    assert [(key, id(value)) for key, value in net.state_dict(keep_vars=True).items()] == state
