"""Averages of a converted network (EMA, SWA), its trace, and its shards on two processes."""

from __future__ import annotations

import copy
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from aanets_plugin import (
    BilevelStrategy,
    UnsupportedModelError,
    convert_to_aanet,
    fold,
    freeze_base,
    levels,
    load_plain_state_dict,
    save_aanet,
    thaw_base,
    to_plain,
)
from aanets_plugin.baselines import CifarResNet
from tests.core.hosts_setup import (
    KINDS,
    changed,
    converted,
    every_kind,
    gradients,
    images,
    learn,
    loss_of,
    total_error,
    vary,
)
from tests.networks import relative_error

# Averages


@every_kind
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "base"])
def test_an_averaged_model_has_the_mean_of_what_learns_and_the_last_of_the_rest(options, frozen):
    net, x = converted(**options), images()
    if not frozen:
        thaw_base(net)
    average, states = AveragedModel(net), []
    for _ in range(3):
        learn(net.train(), x)
        vary(net)  # α moves, too
        average.update_parameters(net)
        states.append({name: value.clone() for name, value in net.state_dict().items()})
    learns = dict(net.named_parameters())
    for name, value in average.module.state_dict().items():
        if name in learns:
            mean = torch.stack([state[name] for state in states]).double().mean(0)
            assert torch.allclose(value.double(), mean, atol=1e-5)  # float32
            assert not torch.equal(value, states[-1][name])
        else:
            assert torch.equal(value, states[-1][name])
    reference = copy.deepcopy(net)
    reference.load_state_dict(average.module.state_dict())
    assert torch.equal(average.eval()(x), reference.eval()(x))


def test_an_exponential_average_goes_into_a_file_and_back(tmp_path):
    net, x = converted(), images()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in range(2):
        vary(net)
        average.update_parameters(net)
    torch.save(average.state_dict(), tmp_path / "ema.pt")
    other = AveragedModel(convert_to_aanet(CifarResNet(1, 5)))
    other.load_state_dict(torch.load(tmp_path / "ema.pt"))
    assert torch.equal(other.eval()(x), average.eval()(x))
    assert relative_error(other(x), net.eval()(x)) > 1e-3


AVERAGES = {
    "AveragedModel": lambda net: AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5)),
    "ModelEmaV2": lambda net: pytest.importorskip("timm.utils").ModelEmaV2(net, decay=0.5),
    "ModelEmaV3": lambda net: pytest.importorskip("timm.utils").ModelEmaV3(net, decay=0.5),
}


@every_kind
@pytest.mark.parametrize("make", AVERAGES.values(), ids=AVERAGES)
def test_an_average_goes_on_after_the_base_phase_if_its_base_is_frozen_too(make, options):
    net, x = convert_to_aanet(CifarResNet(1, 5), **options), images()
    bilevel, average, forgotten = BilevelStrategy(net), make(net), make(net)

    def update(copied):
        is_torch = isinstance(copied, AveragedModel)
        (copied.update_parameters if is_torch else copied.update)(net)

    with bilevel.phase():
        for copied in (average, forgotten):
            update(copied)  # the first update copies
        learn(net, x)
        update(average)
    with pytest.raises(RuntimeError, match=r"size of tensor|shape"):
        update(forgotten)
    freeze_base(average)
    before = {name: value.clone() for name, value in average.module.state_dict().items()}
    bilevel.begin_phase()
    learn(net, x)
    vary(net)
    update(average)
    state, now = net.state_dict(), average.module.state_dict()
    assert now.keys() == state.keys()
    for name, _ in net.named_parameters():
        assert torch.allclose(now[name], (before[name] + state[name]) / 2, atol=1e-6)  # float32
        assert not torch.equal(now[name], state[name])


# Traces


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@every_kind
def test_a_traced_network_computes_the_same(options, tmp_path):
    net, x = converted(**options).eval(), images()
    with torch.no_grad():
        net(x)
        traced = torch.jit.trace(net, x)
        torch.jit.save(traced, tmp_path / "net.pt")
        loaded = torch.jit.load(tmp_path / "net.pt")
        # The same operations; the compiler of traces may fuse some.
        assert relative_error(loaded(x), net(x)) < 1e-5
        other = images()
        assert relative_error(loaded(other), net(other)) < 1e-5
        assert relative_error(loaded(other), net(x)) > 1e-2


# Shards


def one_of_two_shards(rank, port, folder):
    """A step and an update of α, each rank on its half of the batch; then the whole weights."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh, results = init_device_mesh("cpu", (2,)), {}
    x, y = (part[2 * rank : 2 * rank + 2] for part in torch.load(f"{folder}/data.pt"))
    for kind in KINDS:
        net = convert_to_aanet(CifarResNet(1, 5), **KINDS[kind])
        net.load_state_dict(torch.load(f"{folder}/{kind}.pt"))
        for level in levels(net.eval()):
            fully_shard(level, mesh=mesh)
        fully_shard(net, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        loss_of(net(x)).backward()
        found = [p.grad.full_tensor() for p in net.parameters()]
        optimizer.step()
        bilevel = BilevelStrategy(net, base_phase=False)
        bilevel.begin_phase()
        bilevel.after_epoch([(x, y)])
        whole = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
        refused = []
        for function in (fold, to_plain, lambda n: save_aanet(n, folder), load_plain):
            try:
                function(net)
            except UnsupportedModelError as error:
                refused.append("sharded by fully_shard" in str(error))
        results[kind] = found, whole, refused
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.destroy_process_group()


def load_plain(net):
    load_plain_state_dict(net, CifarResNet(1, 5).state_dict())


@pytest.mark.slow
def test_a_sharded_network_learns_as_a_whole_one_and_gives_its_weights_back(tmp_path):
    x, y = images(), torch.arange(4)
    torch.save((x, y), tmp_path / "data.pt")
    nets = {kind: converted(**options).eval() for kind, options in KINDS.items()}
    for kind, net in nets.items():
        torch.save(net.state_dict(), tmp_path / f"{kind}.pt")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(one_of_two_shards, (port, str(tmp_path)), nprocs=2)
    results = torch.load(tmp_path / "results.pt")
    for kind, net in nets.items():
        found, whole, refused = results[kind]
        start = {name: value.clone() for name, value in net.state_dict().items()}
        loss_of(net(x)).backward()
        # float32, sums over the batch in another order
        assert total_error(found, gradients(net)) < 1e-5
        torch.optim.SGD(net.parameters(), lr=0.05).step()
        bilevel = BilevelStrategy(net, base_phase=False)
        bilevel.begin_phase()
        bilevel.after_epoch([(x, y)])
        assert refused == [True] * 4
        moved = changed(net, start)
        assert any(name.endswith("alpha") for name in moved)
        for name, value in net.state_dict().items():
            assert torch.allclose(whole[name], value, atol=1e-5)
            assert torch.equal(whole[name], start[name]) == (name not in moved)
