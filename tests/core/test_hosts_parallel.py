"""A converted network in DataParallel and in DistributedDataParallel."""

from __future__ import annotations

import copy
import socket
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel, replicate

from aanets_plugin import UnsupportedModelError, convert_to_aanet, levels
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
    snapshot,
    total_error,
)


@every_kind
def test_data_parallel_runs_forward_and_backward(options):
    net, x = converted(**options).eval(), images()
    parallel = nn.DataParallel(copy.deepcopy(net))
    loss_of(net(x)).backward()
    loss_of(parallel(x)).backward()
    assert torch.equal(parallel(x), net(x))
    assert all(map(torch.equal, gradients(parallel.module), gradients(net)))


@every_kind
def test_the_replicas_of_data_parallel_are_the_network(options, monkeypatch):
    def copied(tensors, devices, detach=False):
        """What torch does between GPUs, on the CPU."""
        return [[t.detach().clone() if detach else t.clone() for t in tensors] for _ in devices]

    torch_file = sys.modules[replicate.__module__]
    monkeypatch.setattr(torch_file, "_broadcast_coalesced_reshape", copied)
    net, x = converted(**options).eval(), images()
    source = copy.deepcopy(net)
    replicas, parts = replicate(source, [0, 1]), x.chunk(2)
    output = torch.cat([replica(part) for replica, part in zip(replicas, parts, strict=True)])
    loss_of(output).backward()
    loss_of(net(x)).backward()
    assert torch.allclose(output, net(x), atol=1e-6)
    # float32, sums over the batch in another order
    assert total_error(gradients(source), gradients(net)) < 1e-5


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


@pytest.mark.slow
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


@pytest.mark.slow
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
        with pytest.raises(UnsupportedModelError, match="Convert the model first, then wrap"):
            convert_to_aanet(net)
        assert not levels(net)
        assert not changed(net, before)
    finally:
        dist.destroy_process_group()
