"""Damaged folders, full disks and folders that cannot be written to: an error of ours, no loss."""

from __future__ import annotations

import resource
import shutil
import zipfile
from contextlib import contextmanager

import pytest
import torch

from aanets_plugin import BilevelStrategy, ConfigurationError, FileWriteError, convert_to_aanet
from aanets_plugin.experiments import AANets, checkpoint
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.trainer import check_momentum
from aanets_plugin.files import write_text
from aanets_plugin.plot_style import new_figure, save
from tests.experiments.run_setup import network, saved, small_run

SPLIT = {"base_classes": 6, "phases": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run with AANets."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    small_run(folder, aanets=AANets(), split=SPLIT)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "copy")


def resume(folder, **options):
    return small_run(folder, aanets=AANets(), split=SPLIT, resume=True, **options)


def refused(folder, match):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match=match):
        resume(folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- damaged files -------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_single_flipped_bit_in_a_tensor_is_noticed(part, folder):
    file = folder / "checkpoint" / "phase.pt"
    assert checkpoint.load(file, checkpoint.PHASE) is not None
    with zipfile.ZipFile(file) as parts:
        tensors = [info for info in parts.infolist() if "/data/" in info.filename]
    largest = max(tensors, key=lambda info: info.file_size)
    content = bytearray(file.read_bytes())
    content[largest.header_offset + int(part * largest.file_size) + 200] ^= 1
    file.write_bytes(content)
    torch.load(file, weights_only=True)  # notices nothing
    refused(folder, r"phase\.pt cannot be read.*checksum.*Restore it")


def without(name):
    return lambda state: state.pop(name)


def replaced(value, *names):
    def change(state):
        for name in names[:-1]:
            state = state[name]
        state[names[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        *[without(name) for name in checkpoint.PHASE],
        *[replaced("text", name) for name in checkpoint.PHASE],
        replaced([], "rows"),
        replaced([1, 2], "rows"),
        replaced({}, "rows", 1),
        replaced({"all": 1.0}, "rows", 0, "head"),
        replaced(7, "rows", 0, "phase"),
        replaced(torch.zeros(3), "net", "backbone.conv1.weight"),
        replaced("text", "net", "backbone.conv1.weight"),
        replaced({}, "net"),
        replaced(None, "bilevel"),
        replaced({"levels": []}, "bilevel"),
        replaced([{"phase": 1}], "bilevel", "history"),
        replaced(torch.zeros(2), "exemplars", "y"),
        replaced({}, "exemplars"),
    ],
)
def test_missing_and_wrong_entries_are_told_with_the_name_of_the_file(change, folder):
    state = saved(folder)
    change(state)
    torch.save(state, folder / "checkpoint" / "phase.pt")
    refused(folder, r"copy/checkpoint/phase\.pt (cannot be read|does not fit)")


def test_momentum_of_another_shape_is_noticed():
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    check_momentum(optimizer)
    optimizer.state[weight]["momentum_buffer"] = torch.zeros(1)
    with pytest.raises(ValueError, match="momentum_buffer has the shape"):
        check_momentum(optimizer)


@pytest.mark.parametrize("name", ["config.json", "checkpoint/phase.pt"])
def test_a_folder_in_place_of_a_file_is_told(name, folder):
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, rf"{name} cannot be read")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"[1]", b"3"])
def test_settings_that_cannot_be_read_are_told(content, folder):
    (folder / "config.json").write_bytes(content)
    refused(folder, r"config\.json (cannot be read|holds a).*Restore it")


def test_measurements_that_are_lost_or_damaged_are_written_again(folder, finished):
    (folder / "metrics.jsonl").write_bytes(b"\xff{")
    (folder / "alpha.csv").unlink()
    assert RunFolder(folder).rows() == []
    resume(folder)
    for name in ("metrics.jsonl", "alpha.csv"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


# -- files that cannot be written ----------------------------------------------------------------


@contextmanager
def files_of_at_most(size):
    """The system lets no file become larger, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_history(path):
    strategy = BilevelStrategy(convert_to_aanet(network()), base_phase=False)
    strategy.to_csv(path)


def write_figure(path):
    save(new_figure(2, 2)[0], path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("epoch.pt", lambda path: checkpoint.save(path, {"net": torch.zeros(5000)})),
        ("metrics.jsonl", lambda path: write_text(path, "x" * 5000)),
        ("alpha.csv", write_history),
        ("accuracy.png", write_figure),
    ],
)
def test_a_full_disk_leaves_the_file_of_before_and_no_other(name, write, tmp_path):
    (tmp_path / name).write_text("before")
    write_limit = 10 if name == "alpha.csv" else 1000
    with (
        pytest.raises(FileWriteError, match=rf"{name} cannot be written \(File too large\)"),
        files_of_at_most(write_limit),
    ):
        write(tmp_path / name)
    assert (tmp_path / name).read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    write(tmp_path / name)
    assert (tmp_path / name).read_bytes() != b"before"


def test_a_run_goes_on_when_the_disk_has_room_again(tmp_path, finished):
    with pytest.raises(FileWriteError, match=r"epoch\.pt cannot"), files_of_at_most(50_000):
        resume(tmp_path / "run")
    assert not list(tmp_path.rglob("*.tmp"))
    resume(tmp_path / "run")
    for name in ("metrics.jsonl", "alpha.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (finished / name).read_bytes()


def test_a_folder_that_cannot_be_made_is_told_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileWriteError, match=r"file/run cannot be written"):
        resume(tmp_path / "file" / "run")
