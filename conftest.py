"""For the tests and for the examples in the docstrings."""

import importlib.util
import os
import re

# Tiny tensors: a second thread costs more than it brings, here and in the processes started.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)
torch.set_warn_always(True)  # not once per process, which depends on the order of the tests

# pytest would import these files as `adapters`, a second copy of `aanets_plugin.adapters`. Their
# examples are run by tests/adapters/test_docstrings.py.
collect_ignore = ["adapters"]


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    # Files with slow tests first: with several workers none of them is left for the end.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        for package in imported_by_the_example(item):
            if importlib.util.find_spec(package) is None:
                item.add_marker(pytest.mark.skip(reason=f"could not import {package!r}"))


def imported_by_the_example(item):
    examples = item.dtest.examples if isinstance(item, pytest.DoctestItem) else ()
    code = "".join(example.source for example in examples)
    return re.findall(r"^(?:from|import) (\w+)", code, flags=re.MULTILINE)
