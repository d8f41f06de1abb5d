"""Wrappers of torch.distributed that are older than the parameters of the model are refused."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from aanets_plugin import (
    BilevelStrategy,
    PhaseError,
    UnsupportedModelError,
    convert_to_aanet,
    levels,
)
from aanets_plugin.parallel import check_same_weights
from tests.core.hosts_setup import changed, images, loss_of, snapshot
from tests.networks import InPlaceNet


@pytest.fixture
def alone():
    """A process group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("stem", ["stable", "plastic", "paired"])
@pytest.mark.parametrize("unused", [False, True])
def test_a_wrapper_from_the_base_phase_is_refused_in_the_next_phase(alone, stem, unused):
    net, x = convert_to_aanet(InPlaceNet(), stem=stem), images()
    bilevel = BilevelStrategy(net)
    wrapper = DistributedDataParallel(net, find_unused_parameters=unused)
    with bilevel.phase():
        loss_of(wrapper(x)).backward()
    with bilevel.phase():
        with pytest.raises(PhaseError, match=r"older than.*Wrap the model again.*begin_phase"):
            wrapper(x)
        net(x)  # the model itself, as for evaluation
        again = DistributedDataParallel(net, find_unused_parameters=unused)
        for _ in range(2):
            loss_of(again(x)).backward()
        pickle.dumps(net)
    assert not net._forward_pre_hooks


@pytest.mark.slow
@pytest.mark.parametrize("order", ["compiled DDP", "DDP of a compiled model"])
def test_a_compiled_wrapper_from_the_base_phase_is_refused_in_the_next_phase(alone, order):
    net, x, compiled = convert_to_aanet(InPlaceNet()), images(), []

    def backend(graph, _):
        compiled.append(graph)
        return graph

    def compile_(model):
        return torch.compile(model, backend=backend)

    def wrap():
        if order == "compiled DDP":
            return compile_(DistributedDataParallel(net))
        return DistributedDataParallel(compile_(net))

    bilevel, wrapper = BilevelStrategy(net), wrap()
    with bilevel.phase():
        for _ in range(2):
            loss_of(wrapper(x)).backward()
    with bilevel.phase():
        with pytest.raises(PhaseError, match=r"older than.*Wrap the model again.*begin_phase"):
            wrapper(x)
        again = wrap()
        for _ in range(2):
            loss_of(again(x)).backward()
    with bilevel.phase():
        loss_of(wrap()(x)).backward()
    assert len(compiled) == 2  # once in the base phase, once for all others


@pytest.mark.slow
def test_the_check_does_not_break_the_graph(alone):
    net = convert_to_aanet(InPlaceNet())
    bilevel, whole = BilevelStrategy(net), torch.compile(net, backend="eager", fullgraph=True)
    wrapper = DistributedDataParallel(whole)
    with bilevel.phase():
        wrapper(images())
    with bilevel.phase():
        whole(images())


def test_a_wrapper_from_before_the_strategy_is_refused_in_the_base_phase(alone):
    wrapper = DistributedDataParallel(convert_to_aanet(InPlaceNet()))
    bilevel = BilevelStrategy(wrapper)
    bilevel.begin_phase()
    with pytest.raises(PhaseError, match="Wrap the model again"):
        wrapper(images())


def test_a_wrapper_around_a_larger_model_is_checked_too(alone):
    backbone = convert_to_aanet(InPlaceNet())
    whole = nn.Sequential(backbone, nn.Linear(5, 2))
    bilevel = BilevelStrategy(backbone)
    wrapper, x = DistributedDataParallel(whole), images()
    with bilevel.phase():
        wrapper(x)
    bilevel.begin_phase()
    with pytest.raises(PhaseError, match="Wrap the model again"):
        wrapper(x)


def test_a_model_that_was_sharded_in_the_base_phase_is_refused_and_untouched(alone):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    net = convert_to_aanet(InPlaceNet())
    bilevel = BilevelStrategy(net)
    bilevel.begin_phase()
    fsdp.fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    names = list(net.state_dict())
    with pytest.raises(
        UnsupportedModelError, match=r"freeze_base: .* sharded.*Shard a model after"
    ):
        bilevel.end_phase()
    assert bilevel.in_phase
    assert list(net.state_dict()) == names
    plain = InPlaceNet()
    fsdp.fully_shard(plain, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UnsupportedModelError, match=r"convert_to_aanet: .* is sharded"):
        convert_to_aanet(plain)


def _rank(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    net, said = convert_to_aanet(InPlaceNet()), []
    before = snapshot(net)
    for change in (False, True):
        if change and rank:
            with torch.no_grad():
                net.fc.bias[0] += 1e-6
        try:
            check_same_weights(net)
            said.append("")
        except PhaseError as error:
            said.append(str(error))
    assert levels(net)
    assert len(changed(net, before)) == rank
    torch.save(said, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_with_different_parameters_all_stop(tmp_path):
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        same, different = torch.load(tmp_path / f"{rank}.pt")
        assert same == ""
        assert "The ranks have different parameters" in different
