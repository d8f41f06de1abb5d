"""The commands of `aanets`, one file each. `aanets_plugin.experiments.command` finds them here.

The file's name is the command's name and its docstring is the help; the first line is shown by
`aanets --help`, for which no file is imported. A file has two functions:

    def add_arguments(parser: argparse.ArgumentParser) -> None
    def execute(args: argparse.Namespace) -> None

An `AANetError` raised by `execute` ends the program with its message and exit code 2.
"""
