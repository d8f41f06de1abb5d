"""What the pages in docs/ show, runs, or compiles where it needs a host."""

from __future__ import annotations

import ast
import pkgutil
import re
from pathlib import Path

import pytest
import torch

from aanets_plugin import levels

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {
    page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8")
    for page in sorted(DOCS.rglob("*.md"))
}
HOST_CODE = {
    f"hosts/{name}.md" for name in ("libcontinual", "clearning", "lucir", "podnet", "pycil")
}
"""Pages whose code needs the host, so that it is only compiled."""
OWN_TESTS = {"hosts/own-adapter.md", "hosts/lightning.md"}
NEEDS = ("avalanche", "continuum", "lightning", "pytorch_grad_cam", "safetensors", "torchvision")
EXPERIMENTS = ("accelerate", "continuum", "sklearn")


def blocks(page, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def run(page):
    """The names that the blocks of a page define, one after the other."""
    names = {"__name__": "__main__"}  # dataclasses look their module up
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)
    return names


RUNNABLE = [page for page in PAGES if blocks(page) and page not in HOST_CODE | OWN_TESTS]


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    code = "".join(blocks(page))
    needed = [name for name in NEEDS if name in code]
    if "grad_cam" in code:
        needed.append("pytorch_grad_cam")
    for package in [*needed, *(EXPERIMENTS if "aanets_plugin.experiments" in code else ())]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    run(page)


def assert_alpha_learned(network, bilevel, updates):
    assert all(level.alpha[0] != 0.5 for level in levels(network))
    assert {record.phase for record in bilevel.history} == {1, 2}
    assert len(bilevel.history) == updates * len(levels(network))


def test_the_adapter_of_the_guide_runs_and_has_twenty_lines():
    names = run("hosts/own-adapter.md")
    assert_alpha_learned(names["learner"].net, names["learner"].bilevel, updates=4)
    adapter = blocks("hosts/own-adapter.md")[1]
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
    names = run("hosts/lightning.md")
    assert_alpha_learned(names["module"], names["aanets"].bilevel, updates=4)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_compiles(page):
    for code in blocks(page):
        ast.parse(code)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[page]):
        assert ((DOCS / page).parent / target).exists(), target


def test_the_index_of_the_hosts_names_every_page():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", PAGES["hosts/README.md"]))
    pages = {Path(page).name for page in PAGES if page.startswith("hosts/")}
    assert linked == pages - {"README.md"}


@pytest.mark.parametrize("host", ["pycil", "mammoth", "facil", "lightning"])
def test_the_lines_of_a_page_import_what_there_is(host):
    """The added lines of the diff name the adapter and something that is in it."""
    source = (DOCS.parent / "adapters" / f"{host}.py").read_text(encoding="utf-8")
    added = blocks(f"hosts/{host}.md", "diff")[0]
    module, name = re.search(r"^\+from (\S+) import (\w+)$", added, re.MULTILINE).groups()
    assert module == f"aanets_plugin.adapters.{host}"
    defined = {getattr(node, "name", None) for node in ast.parse(source).body}
    assert name in defined


REFERENCES = re.findall(r"^::: (\S+)$", "\n".join(PAGES.values()), re.MULTILINE)


@pytest.mark.parametrize("name", REFERENCES)
def test_the_reference_names_what_there_is(name):
    path = name if name.startswith("aanets_plugin") else f"aanets_plugin.{name}"
    try:
        pkgutil.resolve_name(path)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("aanets_plugin"):
            raise
        pytest.skip(f"needs {error.name}")


def test_the_quickstart_begins_with_the_first_command_of_the_readme():
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert blocks("start/quickstart.md", "bash")[0] in readme


NOT_OURS = {"The size of tensor a must match …, in `update_parameters` of an averaged model"}
"""Headings of Troubleshooting that quote torch."""


def texts(node):
    """The strings in code, with … for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


@pytest.fixture(scope="module")
def strings():
    files = [
        file
        for name in ("aanets_plugin", "adapters")
        for file in DOCS.parent.glob(f"{name}/**/*.py")
    ]
    return [text for file in files for text in texts(ast.parse(file.read_text(encoding="utf-8")))]


def is_quoted(heading, strings):
    pattern = re.compile(
        ".*?".join(map(re.escape, heading.replace("`", "").strip("… ").split("…")))
    )
    return any(pattern.search(text) for text in strings)


def test_troubleshooting_quotes_errors_as_they_are(strings):
    errors, results = PAGES["troubleshooting.md"].split("## Results")
    headings = set(re.findall(r"^### (.*)$", errors, re.MULTILINE)) - NOT_OURS

    assert len(headings) > 20
    assert results
    assert {heading for heading in headings if not is_quoted(heading, strings)} == set()
    assert not is_quoted("… has a residual stage that is not there", strings)
