"""Two ranks update α: an error on one of them stops both, and both can go on afterwards."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from aanets_plugin import BilevelStrategy, levels
from aanets_plugin.ranks import failing_together
from tests.core.alpha_setup import ROUNDING, aanet, alphas, loader

KINDS = {"ours": BilevelStrategy, "official": BilevelStrategy.official}
DEVICE = torch.device("cpu")
BATCHES = loader(4, 16)


def begun(kind, model=None):
    model = aanet().eval() if model is None else model
    bilevel = KINDS[kind](model, base_phase=False, lr=1e-2)
    bilevel.begin_phase()
    return bilevel


def state_of(bilevel):
    """All that an update changes."""
    state = bilevel.state_dict()
    found = [*alphas(bilevel.model), *state["step"]["velocity"].values()]
    found += [value for value in state.get("gradients", {}).values() if value is not None]
    return [value.clone() for value in found]


def fails_in_its_loss(model, batch):
    if dist.get_rank() == 1:
        raise ZeroDivisionError("a loss of the host")
    return F.cross_entropy(model(batch[0]), batch[1])


def fails_in_its_data():
    yield BATCHES[0]
    if dist.get_rank() == 1:
        raise OSError("a file is not there")
    yield BATCHES[1]


def fail(bilevel, how):
    if how == "loss":
        usual, bilevel.loss_fn = bilevel.loss_fn, fails_in_its_loss
        try:
            bilevel.after_epoch(BATCHES[:2])
        finally:
            bilevel.loss_fn = usual
    elif how == "data":
        bilevel.after_epoch(fails_in_its_data)
    else:
        bilevel.after_epoch(None if dist.get_rank() == 1 else BATCHES[:2])


HOW = ("loss", "data", "no loader")


def _rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    results = {}
    for kind in KINDS:
        for how in HOW:
            bilevel = begun(kind)
            bilevel.after_epoch(BATCHES[:2])
            before, error = state_of(bilevel), None
            try:
                fail(bilevel, how)
            except Exception as caught:
                error = f"{type(caught).__name__}: {caught}"
            after = state_of(bilevel)
            same = len(after) == len(before) and all(map(torch.equal, after, before))
            bilevel.after_epoch(BATCHES[:2])  # nobody waits, all have the same number of messages
            results[kind, how] = error, same, len(bilevel.history), alphas(bilevel.model)

    unequal = begun("official")
    unequal.after_epoch([BATCHES[0], BATCHES[2]] if rank == 0 else [BATCHES[1]])
    results["unequal"] = alphas(unequal.model)
    results["loss"] = unequal.history[0].loss

    collecting = begun("official")
    wrapper = DistributedDataParallel(collecting.model)
    for _ in range(2):
        F.cross_entropy(wrapper(BATCHES[rank][0]), BATCHES[rank][1]).backward()
        collecting.after_epoch([BATCHES[2]])
    results["collected"] = alphas(collecting.model)
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_rank, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("how", "own"),
    [
        ("loss", "ZeroDivisionError: a loss of the host"),
        ("data", "OSError: a file is not there"),
        ("no loader", "ConfigurationError: after_epoch() in phase 0 needs a balanced loader."),
    ],
)
def test_an_error_on_one_rank_stops_both_and_changes_nothing(ranks, kind, how, own):
    (told, same, updates, first), (raised, same_there, _, second) = (r[kind, how] for r in ranks)
    assert raised.startswith(own)
    assert told.startswith(f"ProcessError: rank 1 of 2 has failed ({own}")
    assert told.endswith("so rank 0 stops too.")
    assert same
    assert same_there
    assert updates == 2 * len(levels(aanet()))  # before the error and after it
    assert torch.equal(first, second)


def joined(*batches):
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


@pytest.mark.slow
def test_ranks_with_unequal_numbers_of_batches_make_the_same_official_steps(ranks):
    one = begun("official")
    one.after_epoch([joined(*BATCHES[:2]), BATCHES[2]])
    for rank in ranks:
        torch.testing.assert_close(rank["unequal"], alphas(one.model), rtol=0, atol=ROUNDING)
        assert rank["loss"] == pytest.approx(one.history[0].loss)
    other = begun("official")
    other.after_epoch([joined(*BATCHES[:2])])
    assert (alphas(other.model) - alphas(one.model)).abs().max() > 1e-4


@pytest.mark.slow
def test_the_ranks_share_what_alpha_collects_in_their_training(ranks):
    """As one process whose batches are those of both ranks together."""
    expected = {}
    for name, batch in {"both": joined(*BATCHES[:2]), "one": BATCHES[0]}.items():
        one = begun("official")
        for _ in range(2):
            F.cross_entropy(one.model(batch[0]), batch[1]).backward()
            one.after_epoch([BATCHES[2]])
        expected[name] = alphas(one.model)
    assert torch.equal(*(rank["collected"] for rank in ranks))
    actual = ranks[0]["collected"]
    torch.testing.assert_close(actual, expected["both"], rtol=0, atol=ROUNDING)
    assert (actual - expected["one"]).abs().max() > 1e-4


def test_a_process_alone_has_its_own_error():
    with pytest.raises(ZeroDivisionError), failing_together(DEVICE):
        raise ZeroDivisionError
    with failing_together(DEVICE):
        pass
