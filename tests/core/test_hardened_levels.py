"""Levels under hooks, tracing and unusual inputs and outputs: right, or refused."""

from __future__ import annotations

import collections
import copy
import dataclasses

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import prune

from aanets_plugin import (
    BilevelStrategy,
    UnsupportedModelError,
    convert_to_aanet,
    freeze_base,
    levels,
    thaw_base,
    to_plain,
)
from tests.core.hosts_setup import DEFAULT, KINDS, converted, every_kind, images, learn, vary
from tests.networks import Block, relative_error, shake

# torch.fx


def row_of_stages():
    parts = {
        "conv1": nn.Conv2d(3, 4, 3, 1, 1),
        "layer1": nn.Sequential(Block(4, 4), Block(4, 4)),
        "layer2": nn.Sequential(Block(4, 8, 2)),
        "pool": nn.AdaptiveAvgPool2d(1),
    }
    return nn.Sequential(collections.OrderedDict(parts))


@every_kind
@pytest.mark.parametrize("after_a_forward", [False, True])
def test_a_network_traced_by_fx_has_all_branches_and_reads_alpha(options, after_a_forward):
    net, x = converted(row_of_stages, **options).eval(), images()
    if after_a_forward:
        net(x)
    traced = fx.symbolic_trace(net)
    assert torch.equal(traced(x), net(x))
    assert "Proxy" not in repr([vars(level) for level in levels(net)])
    with torch.no_grad():
        net.layer2.alpha.copy_(net.layer2.alpha.flip(0))
    assert torch.equal(traced(x), net(x))  # α is a buffer of the traced network, not a constant


def test_the_feature_extractor_of_torchvision_gives_the_aggregated_maps():
    extraction = pytest.importorskip("torchvision.models.feature_extraction")
    net, x = converted(row_of_stages, **DEFAULT).eval(), images()
    seen = []
    net.layer2.register_forward_hook(lambda module, args, output: seen.append(output))
    net(x)
    maps = extraction.create_feature_extractor(net, ["layer2"])(x)["layer2"]
    assert torch.equal(maps, seen[0])


# Outputs and inputs


@dataclasses.dataclass
class Maps:
    last: Tensor
    all: list[Tensor]
    count: int = dataclasses.field(default=0, init=False)


Pair = collections.namedtuple("Pair", ["last", "count"])


class Stage(nn.Module):
    """A residual stage that hands its input and output through two functions."""

    def __init__(self, take=lambda x: x, give=lambda x: x):
        super().__init__()
        self.block = Block(4, 4, relu=False)
        self.take, self.give = take, give

    def forward(self, *args, **kwargs):
        return self.give(self.block(self.take(*args, **kwargs)))


class Caller(nn.Module):
    """Calls a stage in some way, and reads a tensor from what it gives."""

    def __init__(self, stage, call=lambda stage, x: stage(x), read=lambda y: y):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 1, 1)
        self.stage = stage
        self.call, self.read = call, read

    def forward(self, x):
        return self.read(self.call(self.stage, self.conv(x)))


def dataclass_of(x):
    maps = Maps(x, [x, 2 * x])
    maps.count = 3
    return maps


def default_dict_of(x):
    return collections.defaultdict(list, {"last": x})


GIVES = {
    "dataclass": (dataclass_of, lambda y: y.last + y.all[1] * y.count),
    "namedtuple": (lambda x: Pair(x, 3), lambda y: y.last * y.count),
    "default dict": (default_dict_of, lambda y: y["last"] if y["none"] == [] else None),
    "complex": (lambda x: torch.complex(x, 2 * x), lambda y: y.real + y.imag),
}


@pytest.mark.parametrize("form", GIVES)
def test_every_tensor_in_an_output_is_aggregated(form):
    give, read = GIVES[form]
    plain, x = shake(Caller(Stage(give=give), read=read)).eval(), images()
    expected = plain(x)
    net = convert_to_aanet(plain, stages=["stage"])
    assert relative_error(net(x), expected) < 1e-6
    vary(net)
    level, features = net.stage, net.conv(x)
    parts = zip(level.alpha, level.branches, strict=True)
    by_hand = sum(alpha * read(branch(features)) for alpha, branch in parts)
    assert relative_error(net(x), by_hand) < 1e-5
    assert relative_error(net(x), read(level.plastic(features))) > 1e-3


@pytest.mark.parametrize(
    "give", [lambda x: iter([x]), lambda x: {x.mean().item()}, lambda x: x.mean().item()]
)
def test_an_output_that_cannot_be_aggregated_is_refused(give):
    net = vary(convert_to_aanet(Caller(Stage(give=give)), stages=["stage"]))
    with pytest.raises(UnsupportedModelError, match="cannot be summed"):
        net(images())


CALLS = {
    "list": (lambda xs: xs[0] + xs[1], lambda stage, x: stage([x, x])),
    "dict": (lambda d: d["x"], lambda stage, x: stage({"x": x})),
    "keyword": (lambda *, x: x, lambda stage, x: stage(x=x)),
    "after others": (lambda size, x: x * size, lambda stage, x: stage(2, x)),
    "writes": (lambda xs: xs[0].mul_(2), lambda stage, x: stage([x])),
    "writes a keyword": (lambda *, x: x.mul_(2), lambda stage, x: stage(x=x)),
}


@pytest.mark.parametrize("form", CALLS)
def test_a_stage_may_be_called_in_any_way(form):
    take, call = CALLS[form]
    plain, x = shake(Caller(Stage(take), call)).eval(), images()
    expected = plain(x)
    net = convert_to_aanet(plain, stages=["stage"])
    for _ in range(2):  # the first forward finds out, the second knows
        assert relative_error(net(x), expected) < 1e-6
    vary(net)
    level = net.stage
    parts = zip(level.alpha, level.branches, strict=True)
    by_hand = sum(alpha * call(branch, net.conv(x)) for alpha, branch in parts)
    assert relative_error(net(x), by_hand) < 1e-5


def test_a_stage_that_writes_into_its_input_in_train_mode_only_gets_a_copy_there():
    class Writes(Stage):
        def forward(self, x):
            return self.block(x.mul_(2) if self.training else x * 2)

    net, x = vary(convert_to_aanet(Caller(Writes()), stages=["stage"])), images()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    net.eval()
    net(x)
    features = net.train().conv(x)
    expected = sum(
        alpha * branch(features.clone())
        for alpha, branch in zip(net.stage.alpha, net.stage.branches, strict=True)
    )
    for _ in range(2):
        assert relative_error(net(x), expected) < 1e-5


def test_a_stage_that_suddenly_writes_into_its_input_is_noticed():
    writes = []
    take = lambda x: x.mul_(2) if writes else x * 2  # noqa: E731
    net, x = converted(lambda: Caller(Stage(take)), stages=["stage"]).eval(), images()
    expected = net(x)
    writes.append(True)
    with pytest.raises(UnsupportedModelError, match=r"stage: .*in place.*Run the batch again"):
        net(x)
    assert relative_error(net(x), expected) < 1e-6


def test_a_stage_that_fills_a_list_of_its_caller_is_refused():
    class Fills(Stage):
        def forward(self, x, maps):
            maps.append(x)
            return self.block(x)

    net = convert_to_aanet(Caller(Fills(), lambda stage, x: stage(x, [])), stages=["stage"])
    with pytest.raises(UnsupportedModelError, match=r"stage: .*adds to a list"):
        net(images())


def test_behind_a_paired_stem_a_stage_takes_one_tensor():
    take, call = CALLS["list"]
    net = convert_to_aanet(Caller(Stage(take), call), stages=["stage"], stem="paired")
    with pytest.raises(UnsupportedModelError, match=r"stage: .*paired stem.*stem='stable'"):
        net(images())


# Hooks


def record(module, seen, kind="forward"):
    if kind == "forward":
        return module.register_forward_hook(lambda m, args, output: seen.append(output))
    if kind == "keywords":
        return module.register_forward_hook(
            lambda m, args, kwargs, output: seen.append(output), with_kwargs=True
        )
    if kind == "pre":
        return module.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    return module.register_full_backward_hook(lambda m, given, grads: seen.append(grads[0]))


@pytest.mark.parametrize("kind", ["forward", "keywords", "pre", "backward"])
@pytest.mark.parametrize("options", [KINDS["all+scaling"], KINDS["paired"]], ids=["", "paired"])
def test_a_hook_of_a_stage_sees_the_level_once_and_goes_with_its_handle(kind, options):
    before, after = [], []
    handles = []

    def make():
        net = Caller(nn.Sequential(Block(4, 4), Block(4, 4)))
        handles.append(record(net.stage, before, kind))
        return net

    net, x = converted(make, stages=["stage"], **options).eval(), images()
    handles.append(record(net.stage, after, kind))
    net(x).sum().backward()
    assert len(before) == len(after) == 1
    assert torch.equal(before[0], after[0])
    thaw_base(net)
    freeze_base(net)
    net(x).sum().backward()
    assert len(before) == 2
    for handle in handles:
        handle.remove()
    net(x).sum().backward()
    assert len(before) == 2
    assert to_plain(net).stage(torch.randn(1, 4, 8, 8)).shape == (1, 4, 8, 8)
    assert len(before) == 2


def test_a_plain_copy_of_a_network_has_the_hooks_of_its_stages():
    seen = []
    net = Caller(Stage())
    record(net.stage, seen)
    plain = to_plain(convert_to_aanet(net, stages=["stage"]))
    plain(images())
    assert len(seen) == 1


def test_a_hook_inside_a_stage_acts_on_each_branch_and_goes_from_all():
    net, x = Caller(nn.Sequential(Block(4, 4))), images()
    handle = net.stage[0].conv_b.register_forward_hook(lambda m, args, output: 2 * output)
    expected = shake(net).eval()(x)
    assert relative_error(convert_to_aanet(net, stages=["stage"])(x), expected) < 1e-6
    handle.remove()
    assert not net.stage.stable[0].conv_b._forward_hooks
    assert relative_error(net(x), expected) > 1e-3
    other = net.stage.plastic[0].conv_b.register_forward_hook(lambda *_: None)
    assert not copy.deepcopy(net).stage.stable[0].bn_b._forward_hooks
    other.remove()


# What a host reads from a stage


def test_a_level_has_the_numbers_of_its_stage_and_refuses_its_methods():
    class Known(Stage):
        def __init__(self):
            super().__init__()
            self.channels, self.mode = 4, "fast"

        def half_of_it(self, x):
            return self.block.conv_a(x)

    net = convert_to_aanet(Caller(Known()), stages=["stage"])
    assert (net.stage.channels, net.stage.mode) == (4, "fast")
    for name in ("half_of_it", "block"):
        with pytest.raises(AttributeError, match=rf"stage\.{name} is in each branch.*plastic"):
            getattr(net.stage, name)
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        _ = net.stage.unknown


def test_a_level_has_no_length_and_is_true():
    level = levels(converted(row_of_stages, **DEFAULT))[0]
    with pytest.raises(TypeError, match=r"len\(layer1\): .*len\(layer1\.plastic\)"):
        len(level)
    assert level
    assert list(level) == [level]


# Paired stems


class TwiceCalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.layer1 = nn.Conv2d(3, 4, 3, 1, 1), nn.Sequential(Block(4, 4))

    def forward(self, x):
        return self.layer1(self.layer1(self.conv1(x)))


class GivesStem(TwiceCalled):
    def forward(self, x):
        x = torch.relu(self.conv1(x))
        return [x, self.layer1(x)]


class AddsStem(TwiceCalled):
    def forward(self, x):
        x = self.conv1(x)
        return self.layer1(x) + x


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (TwiceCalled, "layer1 is called 2 times"),
        (GivesStem, "gives out what its stem"),
        (AddsStem, "gives out what its stem"),
    ],
)
def test_a_stem_that_cannot_be_paired_is_refused_and_can_be_shared(make, text):
    net, x = shake(make()).eval(), images()
    expected = net(x)
    with pytest.raises(UnsupportedModelError, match=text):
        convert_to_aanet(net, stages=["layer1"], stem="paired")
    assert not levels(net)
    convert_to_aanet(net, stages=["layer1"])
    assert relative_error(net(x), expected) < 1e-5


def test_the_feature_maps_of_timm_are_paired_only_without_those_of_the_stem():
    timm = pytest.importorskip("timm")
    make = lambda **options: timm.create_model("test_resnet", features_only=True, **options)  # noqa: E731
    with pytest.raises(UnsupportedModelError, match="gives out what its stem"):
        convert_to_aanet(make(), stem="paired")
    net, x = shake(make(out_indices=(1, 2))).eval(), images(2)
    expected = net(x)
    assert relative_error(convert_to_aanet(net, stem="paired")(x), expected) < 1e-5


# Weights that are computed


COMPUTED = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "pruning": lambda conv: prune.l1_unstructured(conv, "weight", 0.5),
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_computed_weights_work_in_blocks_without_scaling_through_the_phases(kind):
    net, x = row_of_stages(), images()
    COMPUTED[kind](net.layer2[0].conv_b)
    with pytest.raises(UnsupportedModelError, match=r"layer2\.0\.conv_b .* blocks without"):
        convert_to_aanet(net)
    expected = net.eval()(x)
    bilevel = BilevelStrategy(convert_to_aanet(net, blocks=("all", "frozen")))
    assert relative_error(net(x), expected) < 1e-5
    for _ in range(2):
        with bilevel.phase():
            learn(net.train(), x)
            trained = net.eval()(x)
        assert relative_error(net(x), trained) < 1e-5
