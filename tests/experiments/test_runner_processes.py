"""A run in two processes (gloo, on the CPU): same α, same network, shared batches, one folder."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from aanets_plugin import convert_to_aanet
from aanets_plugin.experiments import AANets, scenarios
from aanets_plugin.experiments.processes import share_statistics
from tests.experiments.processes_setup import be_process, free_port
from tests.experiments.run_setup import (
    EXEMPLARS,
    INCREMENTS,
    METHODS,
    TRAINING,
    digits,
    labels_of,
    network,
    rows_of,
    saved,
    small_run,
    unaugmented,
    watched_network,
)

pytestmark = pytest.mark.slow

NAMES = ("lucir", "podnet", "mnemonics")
RANKS = (0, 1)


def one_of_two_processes(rank, port, root):
    be_process(rank, port)
    for name in NAMES:
        seen, nets = [], []

        def remembered(nets=nets):
            nets.append(network())
            return nets[-1]

        make = watched_network(seen, remembered)
        data = unaugmented(digits())
        options = {"aanets": AANets(), "data": data, "backbone": make}
        result = small_run(root / name, METHODS[name], **options)
        held_here = {"result": result.head, "net": nets[0].state_dict(), "seen": seen}
        torch.save(held_here, root / f"{name}-{rank}.pt")

    def slow():
        time.sleep(3 * rank)
        return network()

    try:
        small_run(root / "slow", backbone=slow, split={"base_classes": 0, "phases": 1})
    except Exception as error:
        (root / "error").write_text(f"{type(error).__name__} in process {rank}: {error}")
        raise
    torch.distributed.destroy_process_group()


def test_batchnorm_is_shared_by_gpus():
    """The layers alone: there are no two GPUs here."""
    two, one = (
        SimpleNamespace(num_processes=count, device=torch.device("cuda")) for count in (2, 1)
    )
    plain, x = network().eval(), torch.randn(2, 3, 32, 32)
    expected, keys = plain(x), plain.state_dict().keys()
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    for accelerator, count in ((one, 0), (two, norms)):
        shared = share_statistics(plain, accelerator)
        assert sum(isinstance(m, nn.SyncBatchNorm) for m in shared.modules()) == count
    assert shared.state_dict().keys() == keys
    torch.testing.assert_close(convert_to_aanet(shared)(x), expected)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with the runs, and with the state of each process at their end."""
    root = tmp_path_factory.mktemp("two")
    try:
        mp.spawn(one_of_two_processes, (free_port(), root), nprocs=2)
    except (mp.ProcessRaisedException, mp.ProcessExitedException):
        if not (root / "error").exists():
            raise
    return root


def held(root, name):
    return [torch.load(root / f"{name}-{rank}.pt", weights_only=True) for rank in RANKS]


def seen_by_both(root, name, why):
    """The batches of each process."""
    return [[x for what, x in each["seen"] if what == why] for each in held(root, name)]


@pytest.mark.parametrize("name", NAMES)
def test_the_run_ends_and_its_folder_is_written_once(root, name):
    rows = rows_of(root / name)
    assert [row["classes"] for row in rows] == [6, 8, 10]
    for each in held(root, name):
        assert each["result"] == [row["head"] for row in rows]
    names = {path.name for path in (root / name).iterdir()}
    files = {"config.json", "network.json", "metrics.jsonl", "about.json", "alpha.csv"}
    files |= {"status.json", "time.json", "lock"}
    assert names == files | {"checkpoint"}
    lines = (root / name / "alpha.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 3


@pytest.mark.parametrize("name", NAMES)
def test_both_processes_hold_the_same_alpha_and_it_has_learned(root, name):
    first, second = (each["net"] for each in held(root, name))
    for level in ("layer1", "layer2", "layer3"):
        assert torch.equal(first[f"{level}.alpha"], second[f"{level}.alpha"])
        assert first[f"{level}.alpha"][0] != 0.5


@pytest.mark.parametrize("name", NAMES)
def test_both_processes_hold_the_network_that_is_saved(root, name):
    """With the statistics of BatchNorm: a resumed run must be bit-identical."""
    state = saved(root / name)["net"]
    for each in held(root, name):
        assert {f"backbone.{key}" for key in each["net"]} <= state.keys()
        different = [
            k for k, v in each["net"].items() if not torch.equal(v, state[f"backbone.{k}"])
        ]
        assert different == []


def test_a_batch_is_shared_by_the_processes(root):
    batches = seen_by_both(root, "lucir", "train")
    sizes = [[len(x) for x in each] for each in batches]
    assert set(sizes[0]) == set(sizes[1]) == {TRAINING.batch_size // 2}
    samples = [6 * 20, 2 * 20 + 6 * EXEMPLARS, 2 * 20 + 8 * EXEMPLARS]
    assert len(sizes[0]) == len(sizes[1]) == sum(-(-n // TRAINING.batch_size) for n in samples)
    # Not the same half twice.
    assert not any(torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_together_the_processes_train_on_every_sample(root):
    train, _ = scenarios(unaugmented(digits()), base_classes=6, phases=2)
    steps = -(-6 * 20 // TRAINING.batch_size)
    images = [x for each in seen_by_both(root, "lucir", "train") for x in each[:steps]]
    distinct = {image.numpy().tobytes(): image for image in torch.cat(images)}
    labels = Counter(labels_of(distinct.values(), train))
    own = torch.stack([x for x, _, _ in train[0]])
    assert sum(labels.values()) == len({image.numpy().tobytes() for image in own})
    assert set(labels) == set(range(INCREMENTS[0]))


def test_alpha_learns_on_a_balanced_set_that_the_processes_share(root):
    train, _ = scenarios(unaugmented(digits()), base_classes=6, phases=2)
    both = seen_by_both(root, "lucir", "alpha")
    labels = Counter(labels_of(torch.cat([x for each in both for x in each]), train))
    assert labels == {**dict.fromkeys(range(8), 2 * EXEMPLARS), 8: EXEMPLARS, 9: EXEMPLARS}
    assert all(len(x) <= TRAINING.batch_size // 2 for each in both for x in each)


def test_a_process_that_comes_late_joins_the_run(root):
    """The other process has written config.json by then; that is no error."""
    error = root / "error"
    assert not error.exists(), error.read_text()
    assert len(rows_of(root / "slow")) == 1
