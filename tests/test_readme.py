"""What the README shows, runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aanets_plugin import levels

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUNNER = ("accelerate", "continuum", "sklearn", "torchvision")
NEEDS = {
    "aanets_plugin.adapters.avalanche": ("avalanche",),
    "aanets_plugin.adapters.continuum": RUNNER,
    "aanets_plugin.experiments": RUNNER,
    "torchvision": ("torchvision",),
}


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(code):
    """The names that the code defines."""
    for imported, packages in NEEDS.items():
        if imported in code:
            for package in packages:
                pytest.importorskip(package)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


def test_the_usage_example_runs_as_it_stands():
    names = run(blocks("python")[0])
    alphas = [level.alpha for level in levels(names["model"])]
    assert len(alphas) == 4
    assert all(abs(alpha.sum().item() - 1) < 1e-6 for alpha in alphas)
    assert any(alpha[0] != 0.5 for alpha in alphas)
    assert {record.phase for record in names["bilevel"].history} == {1, 2}


@pytest.mark.parametrize("number", range(1, len(blocks("python"))))
def test_the_other_examples_run_as_they_stand(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(run(blocks("python")[number])) > 2


def test_there_are_two_commands_and_each_installs_what_it_runs():
    commands = [block.strip() for block in blocks("bash")]
    assert len(commands) == 2
    for command in commands:
        assert re.fullmatch(r'pip install -e "\.\[\w+\]" && \S.*', command)


def test_the_test_command_is_the_one_that_runs_here():
    command = blocks("bash")[1].strip()
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", README))
def test_every_link_leads_to_a_file(target):
    assert (ROOT / target).exists()
