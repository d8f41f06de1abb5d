"""The examples in the docstrings of the adapters run, as those of the other modules do."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "adapters"
MODULES = [
    ".".join(("aanets_plugin.adapters", *path.relative_to(FOLDER).with_suffix("").parts))
    for path in sorted(FOLDER.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", [name.removesuffix(".__init__") for name in MODULES])
def test_the_examples_run(name):
    module = pytest.importorskip(name)
    results = doctest.testmod(module)

    assert results.attempted > 0
    assert results.failed == 0
