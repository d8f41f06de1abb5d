"""Names of a package that are imported on first use."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def on_first_use(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], list[str]]:
    """The `__getattr__` and the sorted names of a package that imports them when they are used.

    `names` has the names of each module of the package. A module that is listed among its own
    names stands for itself.
    """
    modules = {name: module for module, group in names.items() for name in group}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{modules[name]}")
        return module if modules[name] == name else getattr(module, name)

    return load, sorted(modules)
