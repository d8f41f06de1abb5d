"""One of two processes fails: the other ends with a message, and the run can be resumed."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest
import torch
import torch.multiprocessing as mp

from aanets_plugin.baselines import LUCIR
from aanets_plugin.experiments import AANets
from tests.experiments.processes_setup import be_process, free_port
from tests.experiments.run_setup import TRAINING, rows_of, saved, small_run

pytestmark = pytest.mark.slow

SPLIT = {"base_classes": 5, "phases": 1}
STEPS = 4  # in an epoch of the second phase: 5 classes of 20 images, and 5 of 5 exemplars
TWO_EPOCHS = dataclasses.replace(TRAINING, epochs=2)
WAIT = 300  # seconds, for a busy machine; the timeout of the process group is half an hour


class Fragile(LUCIR):
    """Fails in the second process, in the incremental phase, as `how` says."""

    how = None
    steps = 0

    def loss(self, head, out, targets, teacher):
        if teacher is not None and os.environ["RANK"] == "1":
            Fragile.steps += 1
            if Fragile.how == "raises" and Fragile.steps > STEPS:
                raise ZeroDivisionError
            if Fragile.how == "exits":
                os._exit(1)
        value = super().loss(head, out, targets, teacher)
        is_last = Fragile.how == "last is nan" and Fragile.steps == STEPS
        return value * float("nan") if is_last else value


def attempt(folder, how=None, **options):
    """Run, and return the error and how long it took."""
    Fragile.how, Fragile.steps = how, 0
    start, said = time.monotonic(), ""
    try:
        small_run(folder, Fragile(), split=SPLIT, aanets=AANets(), training=TWO_EPOCHS, **options)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return said, time.monotonic() - start


def one_of_two_processes(rank, port, root):
    be_process(rank, port)
    results = {"whole": attempt(root / "whole"), "raises": attempt(root / "run", "raises")}
    results["nan"] = attempt(root / "nan", "last is nan")
    (root / "main" / "status.json").mkdir(parents=True, exist_ok=True)  # cannot be written
    results["main"] = attempt(root / "main")
    results["resumed"] = attempt(root / "run", resume=True)  # in processes that are still alive
    torch.save(results, root / f"{rank}.pt")
    results["exits"] = attempt(root / "exits", "exits")
    torch.save(results, root / f"{rank}.pt")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with the runs, and with what the processes said."""
    root, port = tmp_path_factory.mktemp("failed"), free_port()
    context = mp.get_context("spawn")
    both = [context.Process(target=one_of_two_processes, args=(r, port, root)) for r in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(4 * WAIT)
        assert process.exitcode is not None
    return root


def said(root, what):
    """What both processes said, after a short time."""
    both = [torch.load(root / f"{rank}.pt")[what] for rank in (0, 1)]
    assert all(seconds < WAIT for _, seconds in both)
    return [text for text, _ in both]


def test_a_loss_that_raises_an_error_stops_both_processes(root):
    told, raised = said(root, "raises")
    assert raised == "ZeroDivisionError: "
    assert told.startswith("ProcessError: rank 1 of 2 has failed (ZeroDivisionError: ), so rank 0")
    assert told.endswith("--resume) to go on from its last epoch.")


def test_the_resumed_run_is_the_one_that_never_stopped(root):
    assert said(root, "whole") == said(root, "resumed") == ["", ""]
    assert rows_of(root / "run") == rows_of(root / "whole")
    first, second = (saved(root / name)["net"] for name in ("run", "whole"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_loss_that_is_not_finite_on_one_process_stops_both(root):
    """In the last step of an epoch, where the other process has seen finite losses alone."""
    told, raised = said(root, "nan")
    assert raised.startswith("NonFiniteLossError: the training loss is nan in phase 1, epoch 0")
    assert told.startswith("ProcessError: rank 1 of 2 has failed (NonFiniteLossError: the training")


def test_a_file_that_the_main_process_cannot_write_stops_both(root):
    raised, told = said(root, "main")
    assert raised.startswith("FileWriteError: ")
    assert told.startswith("ProcessError: rank 0 of 2 has failed (FileWriteError: ")


def test_a_process_ends_with_a_message_when_another_has_ended(root):
    told, seconds = torch.load(root / "0.pt")["exits"]
    assert told.startswith("ProcessError: process 0 of 2 has lost the connection")
    assert seconds < WAIT
    assert "exits" not in torch.load(root / "1.pt")
    assert len(rows_of(root / "exits")) == 1  # the first phase is saved
