"""What is installed is what is in the tree, it needs torch alone, and it has one version."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import aanets_plugin

ROOT = Path(__file__).parents[1]
PACKAGE_FOLDERS = {"aanets_plugin": "aanets_plugin", "adapters": "aanets_plugin/adapters"}
SDIST_FILES = ("README.md", "LICENSE", "CHANGELOG.md", "setup.cfg", "pyproject.toml")


def run(*command: object, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
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


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, built from a copy of the tree, and the wheel, built from it."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in versioned_files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
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
        if name.startswith(f"{folder}/") and name.endswith((".py", "py.typed"))
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


def test_the_installed_wheel_converts_a_network(installed, tmp_path):
    script = (
        "import aanets_plugin, torchvision\n"
        "net = aanets_plugin.convert_to_aanet(torchvision.models.resnet18())\n"
        "print(aanets_plugin.__file__)\n"
        "print(*(level.name for level in aanets_plugin.levels(net)))"
    )
    file, found = run("-c", script, cwd=tmp_path, PYTHONPATH=str(installed)).splitlines()

    assert Path(file).resolve() == (installed / "aanets_plugin" / "__init__.py").resolve()
    assert found == "layer1 layer2 layer3 layer4"


def imported_after_torch(installed: Path, tmp_path: Path, statement: str) -> set[str]:
    """Top-level packages beyond torch's and the standard library's that `statement` imports."""
    script = (
        "import sys, torch, torch.utils.flop_counter\n"  # this part of torch imports triton
        f"before = set(sys.modules)\n{statement}\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - set(sys.stdlib_module_names) - {'torch'}))"
    )
    return set(run("-c", script, cwd=tmp_path, PYTHONPATH=str(installed)).split())


def test_the_core_imports_torch_alone(installed, tmp_path):
    assert imported_after_torch(installed, tmp_path, "import aanets_plugin") == {"aanets_plugin"}


def test_an_import_beyond_torch_would_be_seen(installed, tmp_path):
    found = imported_after_torch(installed, tmp_path, "import aanets_plugin, timm, tqdm")

    assert {"aanets_plugin", "timm", "tqdm"} <= found


def test_there_is_one_version(installed, tmp_path):
    script = (
        "import importlib.metadata as m\n"
        f"(found,) = m.distributions(name='aanets-plugin', path=[{str(installed)!r}])\n"
        "print(found.version)"
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


@pytest.mark.parametrize("name", ["convert_to_aanet", "profile", "MemoryBudget"])
def test_the_example_in_the_docstring_runs(name):
    value = getattr(aanets_plugin, name)
    known = {
        **{public: getattr(aanets_plugin, public) for public in aanets_plugin.__all__},
        "resnet32": importlib.import_module("aanets_plugin.baselines").resnet32,
    }
    (example,) = (
        test for test in doctest.DocTestFinder(recurse=False).find(value, name, globs=known)
    )
    results = doctest.DocTestRunner().run(example)

    assert results.attempted > 0
    assert results.failed == 0
