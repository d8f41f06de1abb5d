"""convert_to_aanet: what is found, what it computes, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import (
    AANetError,
    AlreadyConvertedError,
    ConfigurationError,
    UnsupportedModelError,
    convert_to_aanet,
    levels,
)
from aanets_plugin.baselines import CifarResNet
from tests.networks import (
    AttentionNet,
    DictNet,
    HeadOverDictNet,
    HeadsNet,
    InPlaceNet,
    ReturntNet,
    bare_blocks_net,
    one_stage_net,
    relative_error,
    resnet18,
    shake,
    tensors,
)


def avalanche_net(name, classes):
    return getattr(pytest.importorskip("avalanche.models"), name)(classes)


def pytorchcv_net(name):
    return pytest.importorskip("pytorchcv.model_provider").get_model(name)


NETWORKS = {
    "torchvision": (lambda: resnet18(num_classes=5), ["layer1", "layer2", "layer3", "layer4"]),
    "cifar": (lambda: CifarResNet(1, 5), ["layer1", "layer2", "layer3"]),
    "dict output": (DictNet, ["stage_1", "stage_2", "stage_3"]),
    "backbone in a learner": (
        HeadOverDictNet,
        ["convnet.stage_1", "convnet.stage_2", "convnet.stage_3"],
    ),
    "stages that give lists": (AttentionNet, ["stage_1", "stage_2", "stage_3", "stage_4"]),
    "layer4 is an identity": (ReturntNet, ["layer1", "layer2", "layer3"]),
    "list of heads": (HeadsNet, ["model.layer1", "model.layer2", "model.layer3"]),
    "in-place first operation": (InPlaceNet, ["layer1", "layer2"]),
    "one stage": (one_stage_net, ["1"]),
    "bare blocks": (bare_blocks_net, ["1", "2"]),
    "avalanche icarl": (
        lambda: avalanche_net("make_icarl_net", 10),
        ["feature_extractor.1", "feature_extractor.2", "feature_extractor.3"],
    ),
    "avalanche slim": (
        lambda: avalanche_net("SlimResNet18", 5),
        ["layer1", "layer2", "layer3", "layer4"],
    ),
    "pytorchcv": (
        lambda: pytorchcv_net("resnet20_cifar10"),
        ["features.stage1", "features.stage2", "features.stage3"],
    ),
}
BLOCKS = [
    ("all",),
    ("scaling",),
    ("frozen",),
    ("all", "scaling"),
    ("all", "frozen"),
    ("scaling", "frozen"),
    ("all",) * 4,
    ("scaling", "all", "frozen"),
]
STEMS = ["stable", "plastic", "paired"]


@pytest.fixture
def x():
    return torch.randn(3, 3, 32, 32)


def output(model, x):
    with torch.no_grad():
        return model(x)


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("name", NETWORKS)
class TestEveryShapeOfNetwork:
    def test_conversion_preserves_the_function(self, name, stem, x):
        build, expected = NETWORKS[name]
        model = shake(build()).eval()
        before = output(model, x)
        assert convert_to_aanet(model, stem=stem) is model
        assert [level.name for level in levels(model)] == expected
        # float32 sums in another order: a few 1e-7 per level
        assert relative_error(output(model, x), before) < 1e-5

    def test_every_stable_branch_runs_and_counts(self, name, stem, x):
        model = convert_to_aanet(shake(NETWORKS[name][0]()), stem=stem).eval()
        before = output(model, x)
        for level in levels(model):
            shaken = copy.deepcopy(model)
            twin = next(other for other in levels(shaken) if other.name == level.name)
            with torch.no_grad():
                for parameter in twin.stable.parameters():
                    parameter.mul_(1.5)
            assert relative_error(output(shaken, x), before) > 1e-4

    def test_training_reaches_both_branches(self, name, stem, x):
        model = convert_to_aanet(shake(NETWORKS[name][0]()), stem=stem).train()
        sum(tensor.square().sum() for tensor in tensors(model(x))).backward()
        assert [key for key, p in model.named_parameters() if p.grad is None] == []
        for level in levels(model):
            for branch in level.branches:
                assert any(p.grad.abs().sum() > 0 for p in branch.parameters())


def test_a_multi_task_network_keeps_its_second_argument(x):
    model = shake(avalanche_net("MTSlimResNet18", 5)).eval()
    tasks = torch.zeros(3, dtype=torch.long)
    before = model(x, tasks)
    convert_to_aanet(model)
    assert len(levels(model)) == 4
    assert relative_error(model(x, tasks), before) < 1e-5


def test_a_forward_with_options_keeps_them(x):
    model = convert_to_aanet(ReturntNet()).eval()
    assert model(x, returnt="features").shape == (3, 8)
    assert len(model(x, returnt="both")) == 2


@pytest.mark.parametrize("blocks", BLOCKS, ids="+".join)
@pytest.mark.parametrize("stem", STEMS)
def test_every_choice_of_blocks_preserves_the_function(blocks, stem, x):
    model = shake(CifarResNet(1, 5)).eval()
    before = output(model, x)
    alpha = torch.rand(len(blocks)).softmax(0).tolist()
    convert_to_aanet(model, blocks=blocks, stem=stem, alpha=alpha)
    assert all(len(level.branches) == len(blocks) for level in levels(model))
    assert relative_error(output(model, x), before) < 1e-5


class TwoNetworks(nn.Module):
    """The slow, obvious reference: two plain networks, run level by level, summed by hand."""

    def __init__(self, plain, stem, alpha):
        super().__init__()
        self.plastic, self.stable = plain, copy.deepcopy(plain)
        self.stem, self.alpha = stem, alpha
        # the stable network has kernels W·φ, by hand
        for conv in [m for m in self.stable.modules() if isinstance(m, nn.Conv2d)]:
            conv.base = conv.weight.detach().clone()
            conv.phi = nn.Parameter(torch.ones(*conv.base.shape[:2], 1, 1, dtype=conv.base.dtype))
            del conv.weight

    def forward(self, x):
        for conv in [m for m in self.stable.modules() if isinstance(m, nn.Conv2d)]:
            conv.weight = conv.base * conv.phi
        if self.stem == "paired":
            inputs = [self._stem(net, x) for net in (self.plastic, self.stable)]
        else:
            net = self.plastic if self.stem == "plastic" else self.stable
            inputs = [self._stem(net, x)] * 2
        for name in ("layer1", "layer2", "layer3"):
            first = getattr(self.plastic, name)(inputs[0])
            second = getattr(self.stable, name)(inputs[1])
            inputs = [self.alpha[0] * first + self.alpha[1] * second] * 2
        return self.plastic.fc(inputs[0].mean((2, 3)))

    def _stem(self, net, x):
        return F.relu(net.bn1(net.conv1(x)))


def _perturb(model):
    """Move everything that learns, each parameter by an amount of its own."""
    with torch.no_grad():
        for i, (name, parameter) in enumerate(sorted(model.named_parameters())):
            generator = torch.Generator().manual_seed(i)
            by = 0.2 * torch.rand(parameter.shape, generator=generator)
            parameter.add_(by if name.endswith("delta") else by * parameter)


def _common_names(model):
    """(name in the reference, name in the converted model) of everything that learns."""
    names = {}
    for ours, _ in model.named_parameters():
        stage, _, rest = ours.partition(".branches.")
        if rest:
            branch, _, inner = rest.partition(".")
            inner = inner.replace("delta", "phi")
            names[f"{('plastic', 'stable')[int(branch)]}.{stage}.{inner}"] = ours
        else:
            shared_stable = ours.startswith(("conv1", "bn1")) and hasattr(model.conv1, "phi")
            theirs = ours.replace("delta", "phi")
            names[f"{'stable' if shared_stable else 'plastic'}.{theirs}"] = ours
    return names


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("stem", STEMS)
def test_outputs_and_gradients_equal_two_plain_networks_summed_by_hand(stem, training):
    x, y = torch.randn(6, 3, 16, 16).double(), torch.randint(5, (6,))
    plain = shake(CifarResNet(2, 5)).double()
    alpha = (0.3, 0.7)
    reference = TwoNetworks(copy.deepcopy(plain), stem, alpha).train(training)
    model = convert_to_aanet(plain, stem=stem, alpha=alpha).train(training)
    names = _common_names(model)
    _perturb(model)
    theirs, ours = dict(reference.named_parameters()), dict(model.named_parameters())
    with torch.no_grad():
        for their, our in names.items():
            theirs[their].copy_(ours[our] + 1 if our.endswith("delta") else ours[our])

    expected, actual = reference(x), model(x)
    torch.testing.assert_close(actual, expected)
    F.cross_entropy(expected, y).backward()
    F.cross_entropy(actual, y).backward()
    for their, our in names.items():
        torch.testing.assert_close(ours[our].grad, theirs[their].grad, msg=our)

    # the control: the same reference with the weights the other way round is another function
    reference.alpha = alpha[::-1]
    assert relative_error(model(x), reference(x)) > 1e-3


def test_a_branch_that_writes_into_its_input_does_not_change_the_other(x):
    """Both branches of `InPlaceNet` start with an in-place ReLU; the plastic one gets −1·x first,
    so that without a copy the stable one would see zeros where it should see x."""

    class Negate(nn.Module):
        def forward(self, x):
            return x.neg_()

    model = convert_to_aanet(shake(InPlaceNet())).eval()
    level = levels(model)[0]
    level.plastic[0] = nn.Sequential(Negate(), nn.ReLU(inplace=True))
    features = model.conv1(x).detach()
    expected = 0.5 * level.plastic(features.clone()) + 0.5 * level.stable(features.clone())
    for _ in range(2):  # the first forward finds out, the second knows
        torch.testing.assert_close(level(features.clone()), expected)
    with torch.inference_mode():
        torch.testing.assert_close(level(features.clone()), expected)


def test_no_copy_is_made_once_no_branch_is_known_to_write(x):
    level = levels(convert_to_aanet(CifarResNet(1, 5)))[0]
    seen = []
    level.plastic.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    inputs = torch.randn(2, 16, 8, 8)
    level(inputs)
    level(inputs)
    assert [given.data_ptr() == inputs.data_ptr() for given in seen] == [False, True]


def test_levels_may_be_named(x):
    model = shake(resnet18(num_classes=5)).eval()
    before = output(model, x)
    convert_to_aanet(model, stages=["layer3", "layer4"])
    assert [level.name for level in levels(model)] == ["layer3", "layer4"]
    assert relative_error(output(model, x), before) < 1e-5
    # what comes before the first level is the stem, under the stable rule
    assert "layer1.0.conv1.delta" in dict(model.named_parameters())


def test_names_order_and_class_of_the_host_stay():
    plain = resnet18()
    model = convert_to_aanet(resnet18())
    assert type(model) is type(plain)
    assert [n for n, _ in model.named_children()] == [n for n, _ in plain.named_children()]


def test_every_module_keeps_its_mode():
    model = resnet18().train()
    model.layer2[0].bn1.eval()
    convert_to_aanet(model)
    assert not model.layer2.plastic[0].bn1.training
    assert not model.layer2.stable[0].bn1.training
    assert model.layer2.plastic[0].bn2.training
    assert model.layer2.training


def test_plastic_parameters_keep_their_identity():
    model = resnet18()
    before = {name: p for name, p in model.named_parameters() if name.startswith("layer")}
    convert_to_aanet(model)
    after = dict(model.named_parameters())
    for name, parameter in before.items():
        stage, _, rest = name.partition(".")
        assert after[f"{stage}.branches.0.{rest}"] is parameter


def test_a_linear_layer_declared_before_the_backbone_is_no_stem():
    class HeadFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 5)
            self.net = DictNet()

    model = convert_to_aanet(HeadFirst())
    assert isinstance(model.head.weight, nn.Parameter)
    assert hasattr(model.net.conv_1_3x3, "phi")


class NoResidual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x):
        return self.second(self.first(x))


def _lazy():
    model = CifarResNet(1, 5)
    model.layer1[0].conv1 = nn.LazyConv2d(16, 3, padding=1)
    return model


def _weight_normed():
    model = CifarResNet(1, 5)
    nn.utils.parametrizations.weight_norm(model.layer2[0].conv1)
    return model


BAD = {
    "no residual stage": (NoResidual, {}, UnsupportedModelError, ["NoResidual", "stages="]),
    "unknown stage": (resnet18, {"stages": ["layer5"]}, ConfigurationError, ["layer5", "layer4"]),
    "duplicate stage": (
        resnet18,
        {"stages": ["layer1", "layer1"]},
        ConfigurationError,
        ["'layer1'", "repeated"],
    ),
    "wrong order": (
        resnet18,
        {"stages": ["layer2", "layer1"]},
        ConfigurationError,
        ["['layer1', 'layer2']"],
    ),
    "nested": (
        resnet18,
        {"stages": ["layer1", "layer1.0"]},
        ConfigurationError,
        ["'layer1.0'", "inside"],
    ),
    "no stage": (resnet18, {"stages": []}, ConfigurationError, ["stages=[]", "found"]),
    "stages is a string": (resnet18, {"stages": "layer1"}, ConfigurationError, ["['layer1']"]),
    "stage without weights": (
        ReturntNet,
        {"stages": ["layer3", "layer4"]},
        ConfigurationError,
        ["'layer4'", "Identity"],
    ),
    "unknown block": (
        resnet18,
        {"blocks": ("all", "stable")},
        ConfigurationError,
        ["'stable'", "'frozen'"],
    ),
    "no block": (resnet18, {"blocks": ()}, ConfigurationError, ["()", "'all'"]),
    "blocks is a string": (resnet18, {"blocks": "all"}, ConfigurationError, ["'all'"]),
    "unknown stem": (resnet18, {"stem": "shared"}, ConfigurationError, ["'shared'", "'paired'"]),
    "alpha sum": (resnet18, {"alpha": (0.5, 0.6)}, ConfigurationError, ["0.6", "1.1"]),
    "alpha length": (resnet18, {"alpha": (1.0,)}, ConfigurationError, ["(1.0,)", "2 weights"]),
    "alpha sign": (resnet18, {"alpha": (1.5, -0.5)}, ConfigurationError, ["-0.5", "[0, 1]"]),
    "alpha is not a number": (
        resnet18,
        {"alpha": (float("nan"), 1.0)},
        ConfigurationError,
        ["nan"],
    ),
    "second conversion": (
        lambda: convert_to_aanet(resnet18()),
        {},
        AlreadyConvertedError,
        ["layer1", "freeze_base"],
    ),
    "lazy weight": (_lazy, {}, UnsupportedModelError, ["layer1.0.conv1", "lazy"]),
    "parametrized weight": (
        _weight_normed,
        {},
        UnsupportedModelError,
        ["layer2.0.conv1", "weight_norm"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_clear_error_and_an_untouched_model(case):
    build, options, error, words = BAD[case]
    model = build()
    modules = dict(model.named_modules())
    classes = {name: type(module) for name, module in modules.items()}
    keys = list(model.state_dict())
    with pytest.raises(error) as caught:
        convert_to_aanet(model, **options)
    assert isinstance(caught.value, AANetError)
    for word in words:
        assert word in str(caught.value)
    after = dict(model.named_modules())
    assert {name: id(module) for name, module in after.items()} == {
        name: id(module) for name, module in modules.items()
    }
    assert {name: type(module) for name, module in after.items()} == classes
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("thing", [None, "resnet18", resnet18])
def test_something_that_is_no_module_is_a_type_error(thing):
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        convert_to_aanet(thing)


def test_a_host_that_caches_activations_on_its_modules_is_converted():
    model = CifarResNet(1, 5)
    model.layer1[0].cached = model.layer1(torch.randn(2, 16, 8, 8))
    with pytest.raises(RuntimeError):
        copy.deepcopy(model.layer1)
    convert_to_aanet(model)
    assert model.layer1.stable[0].cached.grad_fn is None
    assert torch.equal(model.layer1.stable[0].cached, model.layer1.plastic[0].cached)
