"""main: the program `aanets`. Each command is a file in `commands/`."""

import argparse
import ast
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

from aanets_plugin import __version__
from aanets_plugin.errors import AANetError
from aanets_plugin.experiments import commands

DESCRIPTION = """\
Class-incremental learning with and without Adaptive Aggregation Networks (AANets).

`aanets COMMAND --help` explains a command."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line `argv` (default: `sys.argv[1:]`).

    Invalid options end the program with a message and exit code 2.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="aanets",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"aanets {__version__}")
    subparsers = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    execute: Callable[[argparse.Namespace], None] | None = None
    for name in command_names():
        text = _docstring(name)
        subparser = subparsers.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if argv[:1] == [name]:  # the others need not be imported
            module = import_module(f"{commands.__name__}.{name}")
            module.add_arguments(subparser)
            execute = module.execute
    args = parser.parse_args(argv)
    assert execute is not None  # otherwise the parser has ended the program
    with errors_as_messages(subparsers.choices[args.command]):
        execute(args)


def command_names() -> list[str]:
    """The names of all commands: of the files in `commands/`."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


@contextmanager
def errors_as_messages(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the program with a message instead of a traceback; only the main process prints it."""
    is_main = os.environ.get("RANK", "0") == "0"
    try:
        yield
    except AANetError as error:
        if is_main:
            parser.error(str(error))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        if is_main:
            print("Stopped. Add --resume to the same command to continue.", file=sys.stderr)
        raise SystemExit(130) from None


def _docstring(command: str) -> str:
    """The help of a command, read from its file without importing it."""
    spec = find_spec(f"{commands.__name__}.{command}")
    source = spec.loader.get_source(spec.name)  # type: ignore[union-attr]
    return ast.get_docstring(ast.parse(source)) or ""
