"""α of a network inside DataParallel, DDP, torch.compile and autocast."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aanets_plugin import (
    BilevelStrategy,
)
from tests.core.alpha_setup import ROUNDING, aanet, alphas, learned, loader, samples, started


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(nn.DataParallel, id="DataParallel"),
        pytest.param(
            lambda model: torch.compile(model, backend="eager"),
            id="compile",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
            id="both",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_wrapped_model_learns_the_same_alpha_and_uses_it(wrap):
    model, (x, _) = aanet().eval(), samples()
    wrapped = wrap(model)
    with torch.no_grad():
        before = wrapped(x)
    actual = learned(loader(), model=wrapped)
    torch.testing.assert_close(actual, learned(loader()), rtol=0, atol=ROUNDING)
    with torch.no_grad():
        after = wrapped(x)
        torch.testing.assert_close(after, model(x), rtol=0, atol=ROUNDING)
    assert (after - before).abs().max() > 1e-4


@pytest.mark.slow
def test_a_training_step_is_not_compiled_again_after_an_update():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    model = aanet().train()
    bilevel, wrapped = started(model), torch.compile(model, backend=backend)
    x, y = samples()
    for _ in range(2):
        F.cross_entropy(wrapped(x), y).backward()
        bilevel.after_epoch(loader())
    assert model.training
    assert len(graphs) == 1


def test_an_update_under_autocast_is_close_to_the_one_in_float32():
    """bfloat16 has 8 bits: a step may be off by some per cent, not by its size."""
    options = {"normalize": False, "lr": 0.5, "updates": 1}
    batches = loader(dtype=torch.float32)
    start = alphas(aanet(torch.float32))
    exact = learned(batches, model=aanet(torch.float32), **options) - start
    with torch.autocast("cpu", torch.bfloat16):
        model = aanet(torch.float32)
        rough = learned(batches, model=model, **options) - start
    assert rough.dtype == torch.float32
    assert torch.isfinite(rough).all()
    assert not torch.equal(rough, exact)  # bfloat16 it was
    assert ((rough - exact).norm() / exact.norm()) < 0.1


SHARES = {
    "halves": lambda rank: loader(4, 8)[rank : rank + 1],
    "unequal": lambda rank: loader(4, 16)[:3] if rank == 0 else loader(4, 16)[3:],
    "one without": lambda rank: [] if rank == 0 else loader(4, 8),
}


def _rank(rank, folder):
    """One of two processes: updates of α between training steps, results to a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    results = {}
    for name, share in SHARES.items():
        results[name] = learned(share(rank), model=DistributedDataParallel(aanet()))

    wrapped = DistributedDataParallel(aanet())
    bilevel = started(wrapped)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    x, y = loader(4, 8)[rank]
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        bilevel.after_epoch([(x, y)])
    optimizer.zero_grad()
    F.cross_entropy(wrapped(x), y).backward()
    results["gradients"] = torch.cat([p.grad.flatten() for p in wrapped.parameters()])
    results["trained"] = torch.cat([p.detach().flatten() for p in wrapped.parameters()])

    official = BilevelStrategy.official(aanet(), base_phase=False, lr=1e-2)
    official.begin_phase()
    official.after_epoch([(x, y)])
    results["official"] = alphas(official.model)
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes ended with, each with its share of the data."""
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("torch has no gloo")
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_rank, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
def test_two_ranks_learn_the_alpha_of_one_process_with_all_their_batches(ranks, share):
    first, second = (rank[share] for rank in ranks)
    assert torch.equal(first, second)
    own, others = SHARES[share](0), SHARES[share](1)
    torch.testing.assert_close(first, learned([*own, *others]), rtol=0, atol=ROUNDING)
    if own:  # its own share alone would give another
        assert (first - learned(own)).abs().max() > 1e-4


@pytest.mark.slow
def test_distributed_training_goes_on_after_an_update(ranks):
    """The same weights and gradients on both ranks: DDP's reducer still does its work."""
    first, second = ranks
    assert torch.equal(first["trained"], second["trained"])
    assert torch.equal(first["gradients"], second["gradients"])
    assert first["gradients"].norm() > 0


@pytest.mark.slow
def test_two_ranks_hold_the_same_alpha_under_the_official_update(ranks):
    first, second = (rank["official"] for rank in ranks)
    assert torch.equal(first, second)
