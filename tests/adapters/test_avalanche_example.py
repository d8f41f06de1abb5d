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
    done = run("avalanche_plugin.py", *options, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (header,) = (line.split() for line in lines if line.startswith("classes seen"))
    assert header == ["classes", "seen", "5", "10", "average", "forgetting"]
    rows = {arm: line.removeprefix(arm) for arm in ARMS for line in lines if line.startswith(arm)}
    numbers = {arm: list(map(float, row.split())) for arm, row in rows.items()}
    for first, second, average, _ in numbers.values():
        assert 0 <= min(first, second) <= max(first, second) <= 100
        assert abs((first + second) / 2 - average) < 0.11  # each is printed with one digit
    assert numbers[ARMS[0]][0] == numbers[ARMS[1]][0], "the first experience is the same"
    assert numbers[ARMS[0]] != numbers[ARMS[1]]
    assert "the data that LUCIR trains on" in done.stderr
    assert "DeprecationWarning" not in done.stderr

    folder = Path("runs", "avalanche-lucir-2")  # the other name was taken
    assert str(folder / "accuracy.png") in done.stdout
    pictures = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
    assert sorted(pictures) == ["accuracy.png", "alpha.png"]
    assert all(content.startswith(PNG) for content in pictures.values())
