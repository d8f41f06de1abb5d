"""What the pages in docs/hosts show, runs, or compiles where it needs the host."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from aanets_plugin import levels

HOSTS = Path(__file__).parent.parent / "docs" / "hosts"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted(HOSTS.glob("*.md"))}


def blocks(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


def run(page):
    """The names that the blocks of a page define, one after the other."""
    names = {}
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)
    return names


def assert_alpha_learned(network, bilevel, updates):
    assert all(level.alpha[0] != 0.5 for level in levels(network))
    assert {record.phase for record in bilevel.history} == {1, 2}
    assert len(bilevel.history) == updates * len(levels(network))


def test_the_adapter_of_the_guide_runs_and_has_twenty_lines():
    names = run("own-adapter.md")
    assert_alpha_learned(names["learner"].net, names["learner"].bilevel, updates=4)
    adapter = blocks("own-adapter.md")[1]
    assert len([line for line in adapter.splitlines() if line.strip()]) <= 20

    learner = names["Learner"]()
    learner.old = {name: p.detach().clone() for name, p in learner.net.named_parameters()}
    learner.fisher = {name: torch.ones_like(p) for name, p in learner.old.items()}
    names["EWCAdapter"](learner).phase_around("fit")
    learner.train_task(0)
    assert (
        learner.old.keys() == learner.fisher.keys() == dict(learner.net.named_parameters()).keys()
    )
    assert {float(values.mean()) for values in learner.fisher.values()} == {0, 1}


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")  # about workers and hardware
def test_the_lightning_example_runs(tmp_path, monkeypatch):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    monkeypatch.chdir(tmp_path)
    names = run("lightning.md")
    assert_alpha_learned(names["module"], names["aanets"].bilevel, updates=4)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_compiles(page):
    for code in blocks(page):
        ast.parse(code)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGES[page]):
        assert (HOSTS / target).exists(), target


def test_the_index_names_every_page():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", PAGES["README.md"]))
    assert linked == set(PAGES) - {"README.md"}


@pytest.mark.parametrize("host", ["pycil", "mammoth", "facil", "lightning"])
def test_the_lines_of_a_page_import_what_there_is(host):
    """The added lines of the diff name the adapter and something that is in it."""
    source = (HOSTS.parent.parent / "adapters" / f"{host}.py").read_text(encoding="utf-8")
    added = blocks(f"{host}.md", "diff")[0]
    module, name = re.search(r"^\+from (\S+) import (\w+)$", added, re.MULTILINE).groups()
    assert module == f"aanets_plugin.adapters.{host}"
    defined = {getattr(node, "name", None) for node in ast.parse(source).body}
    assert name in defined
