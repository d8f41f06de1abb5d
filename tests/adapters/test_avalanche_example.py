"""examples/avalanche_plugin.py as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_examples import PNG, run

pytest.importorskip("avalanche")

pytestmark = [pytest.mark.avalanche, pytest.mark.slow]

ARMS = ("plain", "AANets, learned α")


def test_a_strategy_plain_and_with_the_plugin(tmp_path):
    (tmp_path / "runs" / "avalanche-lucir").mkdir(parents=True)
    options = ["--strategy", "lucir", "--epochs", "1", "--experiences", "2", "--memory", "20"]
    missing = ["continuum", "accelerate"]  # tables and plots need neither
    done = run("avalanche_plugin.py", *options, cwd=tmp_path, missing=missing)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    header = ["arm", "rule", "5 classes", "10 classes", "average", "forgetting"]
    assert table[0] == header
    assert [row[:2] for row in table[2:]] == [[arm, "head"] for arm in ARMS]
    numbers = {row[0]: list(map(float, row[2:])) for row in table[2:]}
    for first, second, average, _ in numbers.values():
        assert 0 <= min(first, second) <= max(first, second) <= 100
        assert abs((first + second) / 2 - average) < 0.011  # each is printed with two digits
    assert numbers[ARMS[0]][0] == numbers[ARMS[1]][0], "the first experience is the same"
    assert numbers[ARMS[0]] != numbers[ARMS[1]]
    assert "the data that LUCIR trains on" in done.stderr
    assert "DeprecationWarning" not in done.stderr

    folder = Path("runs", "avalanche-lucir-2")  # the other name was taken
    assert str(folder / "accuracy.png") in done.stdout
    pictures = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
    assert sorted(pictures) == ["accuracy.png", "alpha.png"]
    assert all(content.startswith(PNG) for content in pictures.values())
