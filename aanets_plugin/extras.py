"""Packages that are not needed by everyone."""

from importlib import import_module
from typing import Any

from aanets_plugin.errors import ConfigurationError


def needs(module: str, extra: str) -> Any:
    """Import a module of an optional package; the error says which extra of ours has it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{module} cannot be imported ({error}). Run pip install 'aanets-plugin[{extra}]'."
        ) from error
