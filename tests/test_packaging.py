"""The package: what is installed, from which tree, who imports whom, and one version."""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import aanets_plugin

ROOT = Path(__file__).parents[1]
PACKAGE_FOLDERS = {"aanets_plugin": "aanets_plugin", "adapters": "aanets_plugin/adapters"}
SDIST_FILES = ("README.md", "LICENSE", "CHANGELOG.md", "setup.cfg", "pyproject.toml")


def run(*command: object, cwd: Path, python: object = sys.executable, **env: str) -> str:
    done = subprocess.run(
        [str(python), *map(str, command)],
        cwd=cwd,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def versioned_files() -> list[str]:
    """Tracked files and those that would be; no build leftovers."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout, so that the package's files cannot be told from others")
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def checkout(folder: Path) -> Path:
    """A copy of the tree in `folder`."""
    for name in versioned_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, built from a copy of the tree, and the wheel, built from it."""
    tree, out = checkout(tmp_path_factory.mktemp("tree")), tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", out, tree, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    run("-m", "pip", "install", *options, "--target", target, wheel, cwd=target)
    return target


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    expected = {
        installs_as + name.removeprefix(folder)
        for name in versioned_files()
        for folder, installs_as in PACKAGE_FOLDERS.items()
        if name.startswith(f"{folder}/") and name.endswith((".py", "py.typed", ".html"))
    }
    assert {"aanets_plugin/__init__.py", "aanets_plugin/py.typed"} <= expected
    assert names == expected


def test_the_wheel_carries_its_licence(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if re.search(r"\.dist-info/(.*/)?LICENSE$", n))

    assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_holds_what_a_reader_and_a_builder_need(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert [name for name in SDIST_FILES if name not in names] == []


@pytest.mark.slow
def test_the_installed_wheel_converts_a_network(installed, tmp_path):
    script = (
        "import aanets_plugin\n"
        "from aanets_plugin.baselines import resnet20\n"
        "net = aanets_plugin.convert_to_aanet(resnet20())\n"
        "print(aanets_plugin.__file__)\n"
        "print(*(level.name for level in aanets_plugin.levels(net)))"
    )
    file, levels = run("-c", script, cwd=tmp_path, PYTHONPATH=str(installed)).splitlines()

    assert Path(file).resolve() == (installed / "aanets_plugin" / "__init__.py").resolve()
    assert levels == "layer1 layer2 layer3"


def imported_after_torch(installed: Path, tmp_path: Path, statement: str) -> set[str]:
    """Top-level packages beyond torch's and the standard library's that `statement` imports."""
    script = (
        "import sys, torch, torch.utils.flop_counter\n"  # this part of torch imports triton
        f"before = set(sys.modules)\n{statement}\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - set(sys.stdlib_module_names) - {'torch'}))"
    )
    return set(run("-c", script, cwd=tmp_path, PYTHONPATH=str(installed)).split())


@pytest.mark.slow
def test_the_core_imports_torch_alone(installed, tmp_path):
    imported = imported_after_torch(installed, tmp_path, "from aanets_plugin import *")

    assert imported == {"aanets_plugin"}


@pytest.mark.slow
def test_an_import_beyond_torch_would_be_seen(installed, tmp_path):
    imported = imported_after_torch(installed, tmp_path, "import aanets_plugin, pytest")

    assert {"aanets_plugin", "pytest"} <= imported


def test_there_is_one_version(installed, tmp_path):
    script = (
        "import importlib.metadata as m\n"
        f"(wheel,) = m.distributions(name='aanets-plugin', path=[{str(installed)!r}])\n"
        "print(wheel.version)"
    )
    assert run("-c", script, cwd=tmp_path).strip() == aanets_plugin.__version__

    literal = re.compile(rf"version\w*\s*[=:].*{re.escape(aanets_plugin.__version__)}\b")
    places = [
        name
        for name in versioned_files()
        if name.endswith((".py", ".cfg", ".toml")) and literal.search((ROOT / name).read_text())
    ]
    assert places == ["aanets_plugin/__init__.py"]


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


def test_the_changelog_begins_with_this_version():
    changelog = ROOT / "CHANGELOG.md"
    if not changelog.exists():
        pytest.skip("no CHANGELOG.md")
    headings = re.findall(r"^## \[?([^\]\s]+)", changelog.read_text(), flags=re.MULTILINE)
    released = [heading for heading in headings if heading.lower() != "unreleased"]

    assert released[0] == aanets_plugin.__version__


@pytest.mark.parametrize("name", aanets_plugin.__all__)
def test_every_public_name_exists_and_is_explained(name):
    value = getattr(aanets_plugin, name)
    if name != "__version__":
        assert value.__doc__
        # A dataclass without a docstring is given its signature as one.
        assert not value.__doc__.startswith(f"{name}(")


# --- One tree -----------------------------------------------------------------------------------


def environment(folder: Path) -> Path:
    """The interpreter of a new environment that has all packages of this one except ours.

    A path in a .pth file is added to `sys.path`, but the .pth files in it are not read. So an
    editable install of this environment has no effect in the new one.
    """
    venv.create(folder, symlinks=True)
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    python = folder / "bin" / "python"
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run("-c", script, cwd=folder, python=python).strip())
    (site / "packages.pth").write_text("\n".join(sorted(paths)) + "\n")
    return python


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("second"))


@pytest.fixture(scope="module")
def editable(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with an editable install of the first checkout."""
    python = environment(tmp_path_factory.mktemp("editable"))
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--quiet")
    run("-m", "pip", "install", *options, "-e", first, cwd=first.parent, python=python)
    return python


FRAMEWORKS = ("avalanche/__init__.py", "continuum/__init__.py")

CORE_AND_ADAPTERS = """
import importlib.util, json
import aanets_plugin
files = [aanets_plugin.__file__]
for name in ("avalanche", "continuum"):  # found, but not imported: that needs the frameworks
    files.append(importlib.util.find_spec("aanets_plugin.adapters." + name).origin)
print(json.dumps(files))
"""


def files_of(tree: Path, adapters: str = "adapters") -> list[str]:
    folder = (tree / adapters).resolve()
    core = (tree / "aanets_plugin" / "__init__.py").resolve()
    return [str(path) for path in (core, *(folder / name for name in FRAMEWORKS))]


def imported_files(python: Path, cwd: Path, **env: str) -> list[str]:
    output = run("-c", CORE_AND_ADAPTERS, cwd=cwd, python=python, **env)
    return [str(Path(file).resolve()) for file in json.loads(output)]


@pytest.mark.slow
def test_an_editable_install_gives_core_and_adapters_of_its_checkout(editable, first, tmp_path):
    assert imported_files(editable, tmp_path) == files_of(first)


@pytest.mark.slow
def test_a_second_checkout_uses_its_own_adapters(editable, second):
    assert imported_files(editable, cwd=second) == files_of(second)


@pytest.mark.slow
def test_without_its_link_the_second_checkout_would_mix(editable, first, second, tmp_path):
    """What the tests above would see without aanets_plugin/adapters.py."""
    tree = shutil.copytree(second, tmp_path / "tree")
    (tree / "aanets_plugin" / "adapters.py").unlink()
    core, *adapters = imported_files(editable, tree)

    assert core == files_of(tree)[0]
    assert adapters == files_of(first)[1:]


@pytest.mark.slow
@pytest.mark.continuum
def test_a_checkout_works_without_an_install(bare, second, tmp_path):
    pytest.importorskip("continuum")
    script = (
        "import aanets_plugin.adapters\n"
        "from aanets_plugin.adapters.continuum import balanced_loader\n"
        "print(aanets_plugin.adapters.continuum.__file__)"
    )
    file = run("-c", script, cwd=tmp_path, python=bare, PYTHONPATH=str(second)).strip()

    assert Path(file).resolve() == (second / "adapters" / "continuum" / "__init__.py").resolve()


def test_the_bare_environment_has_no_install_of_the_package(bare, tmp_path):
    script = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('aanets_plugin'))"
    output = run("-c", script, cwd=tmp_path, python=bare).strip()

    assert output.startswith("ModuleSpec")
    assert output.endswith(" None")


@pytest.mark.slow
def test_the_wheel_has_the_adapters_inside_the_package(bare, installed, tmp_path):
    files = imported_files(bare, tmp_path, PYTHONPATH=str(installed))

    assert files == files_of(installed, adapters="aanets_plugin/adapters")


# --- Without the frameworks ---------------------------------------------------------------------

OPTIONAL = ("accelerate", "avalanche", "continuum", "matplotlib", "sklearn", "timm", "torchvision")


@pytest.mark.slow
def test_tests_are_collected_or_skipped_where_no_framework_is_installed(tmp_path):
    blocks = f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL}))\n"
    (tmp_path / "blocker.py").write_text(blocks)
    options = ("-p", "blocker", "-p", "no:cacheprovider", "-n", "0", "--collect-only", "-rs")
    output = run("-m", "pytest", *options, cwd=ROOT, PYTHONPATH=str(tmp_path))

    for name in ("avalanche", "continuum", "accelerate"):
        assert f"could not import '{name}'" in output
    assert "tests/core/test_convert.py" in output
    assert "tests/adapters/test_avalanche_plugin.py::" not in output


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
