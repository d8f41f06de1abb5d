"""Modules that can be called like the function that they are named after."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def call_as(function: Callable[..., Any]) -> None:
    """Let the module that defines `function` be called as `function`.

    `from aanets_plugin import levels` gives the submodule, since the package has one of that name.
    Calling it works all the same.
    """

    class CallableModule(ModuleType):
        __call__ = staticmethod(function)

    module = sys.modules[function.__module__]
    module.__class__ = CallableModule
