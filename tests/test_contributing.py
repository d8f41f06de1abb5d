"""What contributors are told to run is what CI runs, with the same versions."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

import aanets_plugin

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def setup(section, option):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config[section][option].split("\n")


def test_the_workflow_runs_what_ci_runs_on_every_python_of_the_package():
    (job,) = read_yaml(".github/workflows/tests.yml")["jobs"].values()
    classifiers = " ".join(setup("metadata", "classifiers"))

    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    assert job["strategy"]["matrix"]["python"] == re.findall(r"Python :: (3\.\d+)", classifiers)


@pytest.mark.parametrize(
    "command", ["pytest", "ruff check .", "ruff format --check .", "mypy", "mkdocs build", "twine"]
)
def test_ci_has_tests_lint_format_types_documentation_and_the_package(command):
    assert any(command in line for line in CI)


def test_the_hooks_of_a_commit_are_commands_of_ci_in_pinned_versions():
    (local,) = read_yaml(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in local["hooks"]]
    pinned = re.findall(
        r"^(\w+)==", "\n".join(setup("options.extras_require", "dev")), re.MULTILINE
    )

    assert entries == ["ruff check --fix", "ruff format", "mypy"]
    for entry in entries:
        assert any(line.startswith(entry.removesuffix(" --fix")) for line in CI)
        assert entry.split()[0] in pinned
    # Not versions of their own, but those of the environment.
    assert {hook["language"] for hook in local["hooks"]} == {"system"}


def test_the_citation_has_the_version_of_the_package():
    assert read_yaml("CITATION.cff")["version"] == aanets_plugin.__version__
