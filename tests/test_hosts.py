"""What host code does to a network, it can do to a converted one."""

from __future__ import annotations

import copy
import pickle
import socket
from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aanets_plugin import (
    UnsupportedModelError,
    convert_to_aanet,
    freeze_base,
    levels,
    thaw_base,
)
from aanets_plugin.baselines import CifarResNet
from tests.networks import (
    HeadOverDictNet,
    InPlaceNet,
    one_stage_net,
    relative_error,
    shake,
    tensors,
)

DEFAULT = {"blocks": ("all", "scaling"), "stem": "stable"}
KINDS = {
    "all+scaling": DEFAULT,
    "scaling+frozen": {"blocks": ("scaling", "frozen"), "stem": "stable"},
    "paired": {"blocks": ("all", "scaling"), "stem": "paired"},
}
BLOCKS = [("all", "scaling"), ("scaling", "frozen"), ("frozen",)]
STEMS = ["stable", "plastic", "paired"]

every_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def vary(net):
    """Move everything that learns, and α, so that no two branches compute the same."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for level in levels(net):
            if level.alpha is not None:
                level.alpha.copy_(torch.rand(len(level.branches)).softmax(0))
    return net


def converted(make=lambda: CifarResNet(1, 5), **options):
    return vary(shake(convert_to_aanet(shake(make()), **options)))


def images(count=4):
    return torch.randn(count, 3, 32, 32)


def loss_of(output):
    return sum(tensor.float().square().mean() for tensor in tensors(output))


def learn(net, x, steps=1, **options):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net(x)).backward()
        optimizer.step()


def snapshot(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def changed(net, before):
    """Names in the state_dict whose bits are not what they were."""
    after = net.state_dict()
    assert after.keys() == before.keys()
    return {name for name, value in before.items() if not torch.equal(after[name], value)}


def gradients(net):
    assert all(p.grad is not None for p in net.parameters())
    return [p.grad for p in net.parameters()]


def total_error(actual, expected):
    """Relative error of all the gradients together: a single one may be zero but for rounding."""
    actual, expected = (torch.cat([t.flatten() for t in ts]) for ts in (actual, expected))
    return relative_error(actual, expected)


# Copies


def through_pickle(net, path):
    return pickle.loads(pickle.dumps(net))


def through_a_file(net, path):
    torch.save(net, path / "net.pt")
    return torch.load(path / "net.pt", weights_only=False)


def through_deepcopy(net, path):
    return copy.deepcopy(net)


every_copy = pytest.mark.parametrize("way", [through_deepcopy, through_pickle, through_a_file])


@every_kind
@every_copy
def test_a_copy_computes_the_same_and_is_independent(way, options, tmp_path):
    net, x = converted(**options).eval(), images()
    other = way(net, tmp_path)
    assert type(other) is type(net)
    assert [type(m) for m in other.modules()] == [type(m) for m in net.modules()]
    assert dict(other.named_parameters()).keys() == dict(net.named_parameters()).keys()
    assert torch.equal(other(x), net(x))

    expected, before = net(x), snapshot(net)
    learn(other.train(), x)
    assert not torch.equal(other.eval()(x), expected)
    assert torch.equal(net(x), expected)
    assert not changed(net, before)


@every_copy
def test_a_copy_goes_between_the_states_without_the_original(way, tmp_path):
    net = converted(**DEFAULT)
    base = way(net, tmp_path)
    thaw_base(base)
    other = way(net, tmp_path)
    before = snapshot(net)
    other.load_state_dict(base.state_dict())
    assert not levels(other)[0].base_frozen
    assert levels(net)[0].base_frozen
    assert not changed(net, before)


@every_kind
def test_a_teacher_stays_what_it_was_while_the_student_learns(options):
    net, x = converted(**options).train(), images()
    teacher = copy.deepcopy(net)
    for parameter in teacher.parameters():
        parameter.requires_grad = False
    teacher.eval()
    said, before = teacher(x), snapshot(teacher)
    assert not said.requires_grad

    for _ in range(2):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        (loss_of(net(x)) + (net(x) - teacher(x)).square().mean()).backward()
        optimizer.step()
    assert torch.equal(teacher(x), said)
    assert not changed(teacher, before)
    assert not torch.equal(net.eval()(x), said)
    assert all(p.requires_grad for p in net.parameters())


# Checkpoints


@every_kind
@pytest.mark.parametrize("file", ["torch", "safetensors"])
def test_a_state_dict_loads_into_a_fresh_network(file, options, tmp_path):
    net, x = converted(**options).eval(), images()
    if file == "torch":
        torch.save(net.state_dict(), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(net.state_dict(), tmp_path / "state.safetensors")
        state = safetensors.load_file(tmp_path / "state.safetensors")
    fresh = convert_to_aanet(CifarResNet(1, 5), **options).eval()
    assert relative_error(fresh(x), net(x)) > 0.1
    fresh.load_state_dict(state, strict=True)
    assert torch.equal(fresh(x), net(x))
    assert not changed(fresh, net.state_dict())


@pytest.mark.parametrize("make", [lambda: CifarResNet(1, 5), HeadOverDictNet], ids=["bare", "head"])
@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("blocks", BLOCKS, ids="+".join)
def test_a_checkpoint_puts_a_network_in_the_state_it_was_saved_in(blocks, stem, make):
    options, x = {"blocks": blocks, "stem": stem}, images()
    frozen = converted(make, **options).eval()
    base = converted(make, **options).eval()
    thaw_base(base)
    vary(base)

    for source, target in [(base, frozen), (frozen, base)]:
        source, target = copy.deepcopy(source), copy.deepcopy(target)
        in_base = not levels(source)[0].base_frozen
        assert all(level.base_frozen == in_base for level in levels(target))
        assert target.state_dict().keys() != source.state_dict().keys() or blocks == ("frozen",)
        assert relative_error(target(x), source(x)) > 1e-3
        target.load_state_dict(source.state_dict(), strict=True)
        assert all(level.base_frozen != in_base for level in levels(target))
        assert not changed(target, source.state_dict())
        assert dict(target.named_parameters()).keys() == dict(source.named_parameters()).keys()
        for ours, theirs in zip(tensors(target(x)), tensors(source(x)), strict=True):
            assert torch.equal(ours, theirs)
        learn(target.train(), x)
        gradients(target)


def test_a_checkpoint_of_data_parallel_loads_into_data_parallel():
    base = converted(**DEFAULT)
    thaw_base(base)
    net = nn.DataParallel(converted(**DEFAULT))
    net.load_state_dict(nn.DataParallel(base).state_dict(), strict=True)
    assert not levels(net)[0].base_frozen
    assert not changed(net.module, base.state_dict())


@pytest.mark.parametrize("strict", [True, False])
def test_a_checkpoint_of_a_plain_network_leaves_the_state_alone(strict):
    net = converted(**DEFAULT)
    before, plain = snapshot(net.layer1), CifarResNet(1, 5).state_dict()
    if strict:
        with pytest.raises(RuntimeError, match="Missing key"):
            net.load_state_dict(plain)
    else:
        net.load_state_dict(plain, strict=False)
    assert levels(net)[0].base_frozen
    assert not changed(net.layer1, before)


# Parallel


@every_kind
def test_data_parallel_runs_forward_and_backward(options):
    net, x = converted(**options).eval(), images()
    parallel = nn.DataParallel(copy.deepcopy(net))
    loss_of(net(x)).backward()
    loss_of(parallel(x)).backward()
    assert torch.equal(parallel(x), net(x))
    assert all(map(torch.equal, gradients(parallel.module), gradients(net)))


def one_of_two_processes(rank, port, folder):
    """Gradients in eval mode, then a step in train mode, each rank on its half of the batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results = {}
    for kind in KINDS:
        torch.manual_seed(rank)  # different networks, until DDP makes them the same
        net = converted(**KINDS[kind])
        if rank == 0:
            torch.save(net.state_dict(), f"{folder}/{kind}.pt")
        parallel = DistributedDataParallel(net).eval()
        half = torch.load(f"{folder}/x.pt")[2 * rank : 2 * rank + 2]
        loss_of(parallel(half)).backward()
        found = [p.grad.clone() for p in net.parameters()]
        parallel.train()
        learn(parallel, half, steps=2)
        results[kind] = found, net.state_dict(), [name for name, _ in net.named_parameters()]
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    torch.save(torch.randn(4, 3, 32, 32), folder / "x.pt")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(one_of_two_processes, (port, str(folder)), nprocs=2)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_give_the_gradient_of_one_with_the_joined_batch(two_processes, kind):
    net = convert_to_aanet(CifarResNet(1, 5), **KINDS[kind])
    net.load_state_dict(torch.load(two_processes / f"{kind}.pt"))
    x = torch.load(two_processes / "x.pt")
    net.eval()  # BatchNorm by its running statistics: samples do not see each other
    loss_of(net(x)).backward()
    for rank in (0, 1):
        found, _, _ = torch.load(two_processes / f"rank{rank}.pt")[kind]
        # float32, sums over the batch in another order
        assert total_error(found, gradients(net)) < 1e-5

    net.zero_grad()
    loss_of(net(x[:2])).backward()
    assert total_error(found, gradients(net)) > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_hold_the_same_network_after_training(two_processes, kind):
    (_, first, names), (_, second, _) = (
        torch.load(two_processes / f"rank{rank}.pt")[kind] for rank in (0, 1)
    )
    start = torch.load(two_processes / f"{kind}.pt")
    differ = {name for name in first if not torch.equal(first[name], second[name])}
    # Each rank has seen its own half, so its own statistics are all that may differ, and do.
    assert differ
    assert all(name.rpartition(".")[2] in ("running_mean", "running_var") for name in differ)
    frozen = {name for name in first if name not in names and "running" not in name}
    frozen = {name for name in frozen if "num_batches" not in name}
    assert any(name.endswith("alpha") for name in frozen)
    assert all(torch.equal(first[name], start[name]) for name in frozen)
    assert not any(torch.equal(first[name], start[name]) for name in names)


def test_a_network_in_distributed_data_parallel_is_refused():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = DistributedDataParallel(CifarResNet(1, 5))
        before = snapshot(net)
        with pytest.raises(UnsupportedModelError, match="Convert first, then wrap"):
            convert_to_aanet(net)
        assert not levels(net)
        assert not changed(net, before)
    finally:
        dist.destroy_process_group()


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


COMPILED = {  # the network, how it is converted, and whether it ran before it is compiled
    "one-stage-used": (one_stage_net, DEFAULT, True),
    "paired": (InPlaceNet, KINDS["paired"], False),
    "in-place": (InPlaceNet, DEFAULT, False),
    "in-place-used": (InPlaceNet, DEFAULT, True),
}


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


# Reaching into it


def test_a_hook_on_the_head_sees_the_features():
    net, x = converted(**DEFAULT).eval(), images()
    seen = []
    handle = net.fc.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    net(x)
    handle.remove()
    net(x)
    assert len(seen) == 1
    assert torch.equal(seen[0], net.features(x))


@every_kind
def test_a_hook_on_a_level_sees_the_sum_of_its_branches(options):
    net, x = converted(**options).eval(), images()
    level, seen = net.layer2, {}
    for key, module in {"level": level, "plastic": level.plastic, "stable": level.stable}.items():
        module.register_forward_hook(lambda m, args, output, key=key: seen.update({key: output}))
    net(x)
    a, b = level.alpha
    # float32, one product and one sum
    assert relative_error(seen["level"], a * seen["plastic"] + b * seen["stable"]) < 1e-6
    assert relative_error(seen["level"], seen["plastic"]) > 1e-3
    assert relative_error(seen["level"], seen["stable"]) > 1e-3


@every_kind
def test_all_children_but_the_head_give_the_features(options):
    net, x = converted(**options).eval(), images()
    trunk = nn.Sequential(*list(net.children())[:-1])
    assert torch.equal(trunk(x).flatten(1), net.features(x))
    assert relative_error(trunk(x.flip(0)).flatten(1), net.features(x)) > 1e-2


def test_an_index_gives_a_block_of_the_plastic_branch():
    net = converted(lambda: CifarResNet(2, 5), **DEFAULT)
    assert net.layer3[-1] is net.layer3.branches[0][1]
    assert net.layer3[0] is net.layer3.branches[0][0]
    assert net.layer3[-1] is not net.layer3.stable[-1]
    with pytest.raises(IndexError):
        net.layer3[2]


@pytest.mark.parametrize("index", [slice(None, -1), slice(None), (0, 1), "0"], ids=str)
def test_a_slice_of_a_level_is_refused(index):
    net = converted(**DEFAULT)
    with pytest.raises(TypeError, match=r"layer3\[.*stable"):
        net.layer3[index]


def test_iterating_over_a_level_gives_the_level():
    net = converted(lambda: CifarResNet(2, 5), **DEFAULT).eval()
    assert list(net.layer3) == [net.layer3]
    x = torch.randn(2, 32, 16, 16)
    expected = net.layer3(x)
    assert torch.equal(nn.Sequential(*net.layer3)(x), expected)
    assert relative_error(net.layer3.plastic(x), expected) > 1e-3


def test_a_block_can_be_replaced_only_while_theta_base_is_being_trained():
    net, x = converted(lambda: CifarResNet(2, 5), **DEFAULT).eval(), images()
    block = copy.deepcopy(net.layer3[-1])
    expected = net(x)
    with pytest.raises(TypeError, match=r"layer3\[-1\].*frozen"):
        net.layer3[-1] = block
    assert torch.equal(net(x), expected)

    thaw_base(net)
    expected = net(x)
    vary(block)
    net.layer3[-1] = block
    assert net.layer3[-1] is block
    replaced = net(x)
    assert relative_error(replaced, expected) > 1e-3
    freeze_base(net)
    assert net.layer3[-1] is block
    # float32, sum of two equal halves
    assert relative_error(net(x), replaced) < 1e-5


# timm


def timm_net(name, **options):
    timm = pytest.importorskip("timm")
    small = {"layers": (1, 1, 1, 1), "channels": (16, 32, 32, 64)} if "v2" in name else {}
    return timm.create_model(name, num_classes=5, **small, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("test_resnet", DEFAULT),
        ("test_resnet", KINDS["scaling+frozen"]),
        ("test_resnet", KINDS["paired"]),
        ("resnet10t", DEFAULT),
        ("resnetv2_50", DEFAULT),
        ("regnetx_002", DEFAULT),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else "-".join([*value["blocks"], value["stem"]])
    ),
)
def test_gradient_checkpointing_of_timm_works_on_the_branches(name, options):
    net, x = converted(lambda: timm_net(name), **options).train(), images(2)
    plain = copy.deepcopy(net)
    net.set_grad_checkpointing(True)
    if name in ("resnetv2_50", "regnetx_002"):  # there the flag is on the stages
        branches = [branch for level in levels(net) for branch in level.branches]
        assert len(branches) == 8
        assert all(branch.grad_checkpointing for branch in branches)
        assert not any(b.grad_checkpointing for level in levels(plain) for b in level.branches)

    runs, convs, losses = Counter(), [], []
    for model in (net, plain):
        conv = next(m for m in levels(model)[1].stable.modules() if isinstance(m, nn.Conv2d))
        convs.append(conv)
        conv.register_forward_pre_hook(lambda module, args: runs.update({module}))
        torch.manual_seed(1)
        losses.append(loss_of(model(x)))
        losses[-1].backward()
    assert [runs[conv] for conv in convs] == [2, 1]  # once more, in the backward
    # float32: the same operations; threads may add in another order
    assert relative_error(losses[0], losses[1]) < 1e-4
    assert total_error(gradients(net), gradients(plain)) < 1e-4

    if name in ("resnetv2_50", "regnetx_002"):
        net.set_grad_checkpointing(False)
        assert not any(branch.grad_checkpointing for branch in branches)


@pytest.mark.parametrize("name", ["test_resnet", "resnetv2_50", "regnetx_002"])
def test_the_classifier_of_timm_can_be_reset(name):
    net, x = converted(lambda: timm_net(name), **DEFAULT).eval(), images(2)
    features, logits = net.forward_features(x), net(x)
    assert logits.shape == (2, 5)
    assert torch.equal(net.forward_head(features), logits)
    net.reset_classifier(7)
    assert net(x).shape == (2, 7)
    assert torch.equal(net.forward_features(x), features)
    net.reset_classifier(0)
    assert net(x).shape == (2, net.num_features)
    loss_of(net.train()(x)).backward()
    gradients(net)


@pytest.mark.parametrize("name", ["test_resnet", "resnetv2_50", "regnetx_002"])
def test_a_timm_network_of_feature_maps_gives_the_same_list_of_maps(name):
    timm = pytest.importorskip("timm")
    small = {"layers": (1, 1, 1, 1), "channels": (16, 32, 32, 64)} if "v2" in name else {}
    net = shake(timm.create_model(name, features_only=True, **small)).eval()
    x = images(2)
    expected = net(x)
    assert convert_to_aanet(net) is net
    maps = net(x)
    assert isinstance(maps, list)
    assert [m.shape for m in maps] == [m.shape for m in expected]
    # float32, sums of two equal halves
    assert relative_error(maps, expected) < 1e-5
    vary(net)
    assert relative_error(net(x), expected) > 1e-2


# Sweeps over parameters and modules


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize(
    "blocks",
    [*BLOCKS, ("all", "frozen"), ("all", "all"), ("all", "scaling", "frozen")],
    ids="+".join,
)
def test_an_optimizer_over_all_parameters_moves_them_and_nothing_else(blocks, stem):
    net, x = converted(blocks=blocks, stem=stem).train(), images()
    before, names = snapshot(net), {name for name, _ in net.named_parameters()}
    learn(net, x, steps=2, weight_decay=0.1, momentum=0.9)
    gradients(net)
    moved = changed(net, before)
    assert names <= moved
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert all(name.rpartition(".")[2] in statistics for name in moved - names)
    assert any(name.endswith("alpha") for name in before.keys() - moved)
    assert sum("alpha" in name for name in before) == 3
    if "frozen" in blocks:  # all of the last branch stays, its statistics included
        last = f"layer2.branches.{len(blocks) - 1}."
        assert not any(name.startswith(last) for name in moved)
        assert any(name.startswith(last) and "running" in name for name in before)


def test_modules_put_in_train_mode_one_by_one_leave_frozen_statistics_alone():
    net, x = converted(blocks=("all", "frozen"), stem="paired").eval(), images()
    before = snapshot(net)
    for module in net.modules():
        module.train()
    net(x)
    moved = changed(net, before)
    assert moved == {
        name for name in before if ".branches.0." in name and ("running" in name or "num_b" in name)
    }
    assert len(moved) == 9 * 3  # mean, variance and count of each BatchNorm of the plastic branch


def test_train_and_eval_of_the_whole_network_leave_frozen_branches_in_eval_mode():
    net = converted(blocks=("all", "frozen")).train()
    for level in levels(net):
        assert all(module.training for module in level.plastic.modules())
        assert not any(module.training for module in level.stable.modules())
    thaw_base(net)
    assert all(module.training for module in net.modules())
