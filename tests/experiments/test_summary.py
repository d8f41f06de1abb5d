"""The summary page from made-up numbers."""

from __future__ import annotations

import os

import pytest

from aanets_plugin.experiments import (
    paired_table,
    results_table,
)
from aanets_plugin.experiments.results import write_summary
from tests.experiments.results_setup import LEARNED, made_up_results


@pytest.fixture
def results():
    return made_up_results()


def test_the_page_has_heading_command_notes_and_both_tables(results, tmp_path):
    path = tmp_path / "summary.md"
    options = {"reported": "nearest_mean", "notes": ["one core", "two"]}
    write_summary(path, results, heading="LUCIR", command="python run.py --seeds 3", **options)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# LUCIR\n\n```\npython run.py --seeds 3\n```\n\n- one core\n- two\n\n")
    assert results_table(results, reported="nearest_mean") in text
    assert paired_table(results, reported="nearest_mean") in text


def test_pictures_are_shown_where_they_exist(results, tmp_path):
    path = tmp_path / "summary.md"
    write_summary(path, results, heading="h", command="c")
    assert ".png" not in path.read_text(encoding="utf-8")
    (tmp_path / "alpha.png").touch()
    write_summary(path, results, heading="h", command="c")
    assert "(alpha.png)" in path.read_text(encoding="utf-8")
    assert "(accuracy.png)" not in path.read_text(encoding="utf-8")
    (tmp_path / "accuracy.png").touch()
    write_summary(path, results, heading="h", command="c")
    assert "(accuracy.png)" in path.read_text(encoding="utf-8")


def test_a_page_without_a_plain_network_compares_nothing(results, tmp_path):
    path = tmp_path / "summary.md"
    for kept in (LEARNED, "plain"):
        write_summary(path, [r for r in results if r.arm == kept], heading="h", command="c")
        text = path.read_text(encoding="utf-8")
        assert kept in text
        assert "Against" not in text
    write_summary(path, results, heading="h", command="c")
    assert "Against the plain network" in path.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_finished_leaves_the_old_one(results, tmp_path, monkeypatch):
    path = tmp_path / "summary.md"
    write_summary(path, results, heading="old", command="c")
    before = path.read_bytes()

    def fails(*_):
        raise OSError("disk")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="disk"):
            write_summary(path, results, heading="new", command="c")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["summary.md"]
    write_summary(path, results, heading="new", command="c")
    assert path.read_bytes() != before
    assert [p.name for p in tmp_path.iterdir()] == ["summary.md"]
