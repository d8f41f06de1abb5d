"""The package: what is installed, from which tree, and one version."""

from __future__ import annotations

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
from pathlib import Path

import pytest

import aanets_plugin
from tests.tree import PACKAGE_FOLDERS, ROOT

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
