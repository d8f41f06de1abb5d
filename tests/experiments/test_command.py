"""The program `aanets`: its commands, help and errors."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from aanets_plugin.experiments import command, commands

TINY = ["--phases", "1", "--epochs", "1", "--images-per-class", "4", "--memory-per-class", "2"]


def test_help_lists_every_command_with_its_first_line_and_does_not_wait_for_torch():
    script = (
        "import sys\n"
        "from aanets_plugin.experiments.command import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    *text, imported = done.stdout.split()
    assert imported == "False", done.stderr
    for name in command.command_names():
        source = Path(commands.__path__[0], f"{name}.py").read_text(encoding="utf-8")
        first = ast.get_docstring(ast.parse(source)).splitlines()[0].split()
        assert " ".join([name, *first]) in " ".join(text)


@pytest.mark.parametrize("name", command.command_names())
def test_every_option_of_a_command_is_explained(name, monkeypatch, capsys):
    parsers = []
    monkeypatch.setattr(
        "argparse.ArgumentParser.print_help", lambda self, file=None: parsers.append(self)
    )
    with pytest.raises(SystemExit) as end:
        command.main([name, "--help"])

    assert end.value.code == 0
    (parser,) = parsers
    assert [action.dest for action in parser._actions if not action.help] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "required: COMMAND"),
        ("walk", "invalid choice: 'walk'"),
        ("run", "METHOD is missing. Pass one of icarl"),
        ("run lucid", "invalid choice: 'lucid'"),
        ("run lucir --phases 4", "aanets run: error: phases=4: must divide the 5 classes"),
    ],
)
def test_a_wrong_command_line_ends_with_a_message(line, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        command.main(line.split())

    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_run_does_what_the_example_script_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["aanets", "run", "icarl", *TINY])
    command.main()

    assert "difference to plain" in capsys.readouterr().out
    folder = tmp_path / "runs" / "icarl"
    assert {path.name for path in folder.glob("*-0")} == {"plain-0", "learned-0"}
    assert "aanets run icarl --phases 1" in (folder / "summary.md").read_text(encoding="utf-8")
