"""Imports: extras have what their files import, and who imports whom."""

from __future__ import annotations

import ast
import configparser
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.tree import PACKAGE_FOLDERS, ROOT

EXTRA_OF = {
    "aanets_plugin/*.py": {"plots", "report"},
    "aanets_plugin/baselines/*.py": set(),
    "aanets_plugin/experiments/**/*.py": {"experiments", "slurm"},
    "adapters/avalanche/*.py": {"avalanche"},
    "adapters/continuum/*.py": {"continuum"},
    "examples/avalanche_plugin.py": {"avalanche"},
    "examples/[!a]*.py": {"examples"},
}
DISTRIBUTIONS = {
    "avalanche": "avalanche-lib",
    "pytorch_grad_cam": "grad-cam",
    "sklearn": "scikit-learn",
}
COMES_WITH = {
    "avalanche-lib": {"matplotlib", "scikit-learn", "torchvision", "tqdm"},
    "continuum": {"numpy", "PIL"},
}


@pytest.mark.parametrize("files", EXTRA_OF)
def test_an_extra_has_what_its_files_import(files):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = config["options.extras_require"]

    def distributions(extra: str) -> set[str]:
        names: set[str] = set()
        for line in extras[extra].split():
            own = re.fullmatch(r"aanets-plugin\[(.*)\]", line)
            if own:
                names.update(*map(distributions, own[1].split(",")))
            else:
                names.add(re.split("[<>=]", line)[0])
        return names.union(*(COMES_WITH.get(name, set()) for name in names))

    known = {*sys.stdlib_module_names, "torch", "aanets_plugin"}
    imported = {
        DISTRIBUTIONS.get(name, name)
        for path in ROOT.glob(files)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in top_level_names(node)
        if name not in known
    }

    assert imported - set().union(*map(distributions, EXTRA_OF[files])) == set()


def top_level_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module.partition(".")[0]]
    return []


# --- Who imports whom ---------------------------------------------------------------------------

MAY_IMPORT = {
    "core": {"core"},
    "baselines": {"core", "baselines"},
    "adapters": {"core", "baselines", "adapters"},
    "experiments": {"core", "baselines", "adapters", "experiments"},
}
# An import inside a function hides a cycle. These are known.
INSIDE_A_FUNCTION = {("aanets_plugin.bilevel", "aanets_plugin.official")}
# Names that are loaded on first use.
LOADS_BY_NAME = {
    "aanets_plugin.adapters.continuum",
    "aanets_plugin.experiments.command",
    "aanets_plugin.extras",
    "aanets_plugin.lazy_names",
    "aanets_plugin.recipes",
}


def module_files() -> dict[str, Path]:
    """Every module of the package by its name, adapters included."""
    modules = {}
    for folder, installs_as in PACKAGE_FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = (installs_as, *path.relative_to(ROOT / folder).with_suffix("").parts)
            modules[".".join(parts).replace("/", ".").removesuffix(".__init__")] = path
    return modules  # adapters/__init__.py, which comes last, stands for aanets_plugin/adapters.py


MODULES = module_files()


def imports_of(module: str, tree: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """The statement, the module and the name of everything that is imported from the package."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            pairs = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join(above) + "." if node.level else ""
            source = (start + (node.module or "")).rstrip(".")
            pairs = [(source, alias.name) for alias in node.names]
        else:
            continue
        for source, name in pairs:
            if f"{source}.{name}" in MODULES:
                source, name = f"{source}.{name}", ""
            if source.partition(".")[0] == "aanets_plugin":
                yield node, source, name


def room(module: str) -> str:
    part = [*module.split("."), ""][1]
    return part if part in MAY_IMPORT else "core"


def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", MODULES)
def test_the_arrow_of_imports(module):
    against = {
        source
        for _, source, _ in imports_of(module, parsed(module))
        if room(source) not in MAY_IMPORT[room(module)]
    }

    assert against == set()


def test_private_names_stay_in_their_file():
    private = {
        (module, source, name)
        for module in MODULES
        for _, source, name in imports_of(module, parsed(module))
        if name.startswith("_") and not name.endswith("__")
    }

    assert private == set()


def is_other_package(name: ast.expr) -> bool:
    return isinstance(name, ast.Constant) and not str(name.value).startswith("aanets_plugin")


def test_imports_stand_at_the_top_of_a_file():
    inside = {
        (module, source)
        for module in MODULES
        for function in ast.walk(parsed(module))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for _, source, _ in imports_of(module, function)
    }
    by_name = {
        module
        for module in MODULES
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and not is_other_package(node.args[0])
    }

    assert inside == INSIDE_A_FUNCTION
    assert by_name == LOADS_BY_NAME


def test_the_imports_are_seen():
    """The three tests above look at what they say."""
    source = (
        "from aanets_plugin.convert import _x\nfrom .memory import y\nimport aanets_plugin.fold"
    )
    module = "aanets_plugin.adapters.continuum.loaders"

    assert [(source, name) for _, source, name in imports_of(module, ast.parse(source))] == [
        ("aanets_plugin.convert", "_x"),
        ("aanets_plugin.adapters.continuum.memory", "y"),
        ("aanets_plugin.fold", ""),
    ]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_imported_by_its_name(module):
    """No function or class of the same name is in its place."""
    try:
        importlib.import_module(module.rpartition(".")[0] or module)
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "aanets_plugin":
            raise
        pytest.skip(f"needs {error.name}")
    names: dict[str, object] = {}
    exec(f"import {module} as imported", names)

    assert isinstance(names["imported"], ModuleType)
    assert names["imported"].__name__ == module
