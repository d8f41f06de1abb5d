"""A converted network in other number formats and layouts, compiled and exported."""

from __future__ import annotations

import copy

import pytest
import torch

from aanets_plugin import freeze_base, levels
from aanets_plugin.scaling import scale
from tests.core.hosts_setup import (
    DEFAULT,
    KINDS,
    converted,
    every_kind,
    gradients,
    images,
    loss_of,
    total_error,
)
from tests.networks import InPlaceNet, one_stage_net, relative_error

# Number formats


@every_kind
def test_mixed_precision_gives_every_parameter_a_finite_gradient(options):
    net, x = converted(**options).train(), images()
    exact = copy.deepcopy(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = net.layer1(net.relu(net.bn1(net.conv1(x))))
        output = net(x)
    assert features.dtype == torch.bfloat16  # a level stays in the format its blocks compute in
    loss_of(output).backward()
    assert all(g.isfinite().all() and g.dtype == torch.float32 for g in gradients(net))
    # bfloat16 has 8 bits: 0.4% per operation, over some ten layers
    assert relative_error(output.float(), exact(x)) < 0.1


@every_kind
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # about ten layers deep, each with a rounding of 2^-53, 2^-11, 2^-8
    [(torch.float64, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-1)],
    ids=str,
)
def test_a_network_can_be_cast(dtype, tolerance, options):
    net, x = converted(**options).eval(), images()
    expected = net(x)
    output = net.to(dtype)(x.to(dtype))
    assert output.dtype == dtype
    assert {level.alpha.dtype for level in levels(net)} == {dtype}
    assert relative_error(output.float(), expected) < tolerance
    loss_of(output).backward()
    gradients(net)
    freeze_base(net)  # what is built anew is built in that format
    assert net(x.to(dtype)).dtype == dtype


@every_kind
def test_channels_last_computes_the_same(options):
    net, x = converted(**options).eval(), images()
    expected = net(x)
    net = net.to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    seen = []
    net.layer1.register_forward_hook(lambda module, args, output: seen.append(output))
    # float32, convolutions that add in another order
    assert relative_error(net(x), expected) < 1e-5
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert not seen[0].is_contiguous()


# Compilers


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield torch.compile
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("kind", "shape", "layout"),
    [
        (torch.nn.Conv2d, (4, 3, 3, 3), torch.channels_last),
        (torch.nn.Conv2d, (4, 3, 3, 3), torch.contiguous_format),
        (torch.nn.Conv3d, (4, 3, 3, 3, 3), torch.channels_last_3d),
        (torch.nn.Linear, (4, 3), torch.contiguous_format),
    ],
    ids=["channels last", "channels first", "3d", "linear"],
)
def test_a_compiled_layer_computes_with_the_layout_of_its_kernel(kind, shape, layout, compiler):
    layer = kind(shape[1], shape[0], 3) if len(shape) > 2 else kind(shape[1], shape[0])
    layer.to(memory_format=layout)
    scale(layer)
    weight = compiler(lambda: layer.weight * 1, backend="eager", fullgraph=True)()
    assert weight.shape == shape
    assert weight.is_contiguous(memory_format=layout)
    assert weight.is_contiguous() == (layout == torch.contiguous_format)


COMPILED = {  # the network, how it is converted, and whether it ran before it is compiled
    "one-stage-used": (one_stage_net, DEFAULT, True),
    "paired": (InPlaceNet, KINDS["paired"], False),
    "in-place-used": (InPlaceNet, DEFAULT, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_network_computes_the_same(name, compiler):
    make, options, after_a_forward = COMPILED[name]
    net, x = converted(make, **options).train(), images()
    plain = copy.deepcopy(net)
    if after_a_forward:
        with torch.no_grad():
            net(x), plain(x)
    fast = compiler(net, fullgraph=True, backend="aot_eager")
    output, expected = fast(x), plain(x)
    # The same operations but for decompositions that round elsewhere.
    assert relative_error(output, expected) < 1e-5
    loss_of(output).backward()
    loss_of(expected).backward()
    assert total_error(gradients(net), gradients(plain)) < 1e-4

    with torch.no_grad():  # α and frozen kernels are read, not built in
        for level in levels(net):
            level.alpha.copy_(level.alpha.flip(0))
    assert relative_error(fast(x), expected) > 1e-3


@every_kind
def test_an_exported_network_computes_the_same(options):
    net, x = converted(**options).eval(), images()
    exported = torch.export.export(net, (x,)).module()
    # The same operations on the same numbers.
    assert relative_error(exported(x), net(x)) < 1e-6
    assert relative_error(exported(x.flip(0)), net(x)) > 1e-2
