"""The examples, run as scripts in a temporary folder."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import aanets_plugin

ROOT = Path(__file__).parents[1]
PNG = b"\x89PNG\r\n\x1a\n"
BASELINES = ["icarl.py", "lucir.py", "mnemonics.py", "podnet.py"]
OTHERS = sorted({path.name for path in ROOT.glob("examples/*.py")} - set(BASELINES))
RUNNER = ("accelerate", "continuum", "matplotlib", "sklearn", "torchvision", "tqdm")
NEEDS = {
    "avalanche_plugin.py": ("avalanche",),
    "own_loop.py": ("matplotlib", "sklearn", "tqdm"),
    "quickstart.py": ("matplotlib", "timm", "torchvision", "tqdm"),
    **dict.fromkeys(BASELINES, RUNNER),
}


def skip_where_it_cannot_run(script: str) -> None:
    for package in NEEDS[script]:
        pytest.importorskip(package)


WITHOUT = """
import runpy, sys

sys.argv = sys.argv[1:]
for name in {missing}:
    sys.modules[name] = None
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(
    script: str, *options: str, cwd: Path, missing: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run an example as a script, as if the packages `missing` were not installed."""
    skip_where_it_cannot_run(script)
    package = str(Path(aanets_plugin.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    start = ["-c", WITHOUT.format(missing=list(missing))] if missing else []
    return subprocess.run(
        [sys.executable, *start, str(ROOT / "examples" / script), *options],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_here(script: str, *options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same in this process, without the time for imports."""
    skip_where_it_cannot_run(script)
    argv, here, out, err, code = sys.argv, Path.cwd(), io.StringIO(), io.StringIO(), 0
    sys.argv = [str(ROOT / "examples" / script), *options]
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = argv
        os.chdir(here)
    return subprocess.CompletedProcess(options, code, out.getvalue(), err.getvalue())


@pytest.mark.parametrize("script", OTHERS)
def test_help_explains_the_script(script, tmp_path):
    done = run_here(script, "--help", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script}")


@pytest.mark.slow
def test_quickstart_converts_tells_the_costs_and_draws_them(tmp_path):
    done = run("quickstart.py", "--output", "out", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for network in ("timm resnet10t", "torchvision resnet18"):
        (line,) = (line for line in lines if line.startswith(network))
        assert float(line.split("differ by ")[1].split()[0]) < 1e-5
        assert line.endswith("levels: layer1, layer2, layer3, layer4")
    (header,) = (row for row in map(str.split, lines) if row[:1] == ["learnable"])
    assert header == ["learnable", "parameters", "FLOPs", "memory"]
    rows = [row[0] for row in map(str.split, lines) if len(row) == 5 and row[-1].endswith("MB")]
    assert rows == ["plain", "all+scaling", "all+frozen", "scaling+frozen"]
    assert any("exemplars per class" in line for line in lines)
    assert str(Path("out", "profile.png")) in done.stdout

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["profile.png"]
    assert (tmp_path / "out" / "profile.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_own_loop_tells_the_accuracy_of_each_arm_by_phase_and_draws_alpha(tmp_path):
    options = ["--epochs", "1", "--memory-per-class", "2", "--output", "out"]
    done = run_here("own_loop.py", *options, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    for arm in ("plain", "AANets, fixed α", "AANets, learned α"):
        rows = [line for line in done.stdout.splitlines() if line.startswith(arm)]
        assert len(rows) == 2  # by head and by nearest mean
        for row in rows:
            *phases, average = map(float, row.removeprefix(arm).split("±")[0].split())
            assert len(phases) == 4
            assert all(0 <= accuracy <= 100 for accuracy in phases)
            assert abs(sum(phases) / 4 - average) < 0.11  # each is printed with one digit
    assert (tmp_path / "out" / "alpha.png").read_bytes().startswith(PNG)


def test_own_loop_refuses_a_memory_of_nothing(tmp_path):
    done = run_here("own_loop.py", "--memory-per-class", "0", cwd=tmp_path)

    assert done.returncode == 2
    assert "must be ≥ 1" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", BASELINES)
def test_a_baseline_is_compared_with_and_without_aanets(script, tmp_path):
    small = ["--phases", "1", "--epochs", "1", "--images-per-class", "4"]
    start = run if script == "lucir.py" else run_here
    done = start(script, *small, "--memory-per-class", "2", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    _, table, differences, costs = done.stdout.split("\n| arm ")
    reported = "nearest mean" if script == "icarl.py" else "head"
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines()[2:4]]
    assert [cell[:2] for cell in cells] == [["plain", reported], ["AANets, learned α", reported]]
    plain, learned = (float(cell[2].strip("*")) for cell in cells)
    assert 0 <= min(plain, learned) <= max(plain, learned) <= 100
    assert "difference to plain" in differences
    assert "FLOPs" in costs

    folder = tmp_path / "runs" / script.removesuffix(".py")
    for name in ("accuracy.png", "alpha.png"):
        assert str(folder.relative_to(tmp_path) / name) in done.stdout
        assert (folder / name).read_bytes().startswith(PNG)
    assert f"examples/{script}" in (folder / "summary.md").read_text(encoding="utf-8")
    with open(folder / "learned-0" / "alpha.csv", encoding="utf-8") as file:
        assert any(abs(float(row["alpha_0"]) - 0.5) > 1e-3 for row in csv.DictReader(file))
