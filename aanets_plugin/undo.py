"""A change of a model that is made as a whole or not at all."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from aanets_plugin.errors import AANetError, UnsupportedModelError


@contextmanager
def undone_on_error(model: nn.Module, what: str) -> Iterator[None]:
    """Undo what the block did to the modules of `model` if it raises an error.

    Classes and attributes of modules are restored, values of tensors are not: the block must not
    write into them. Errors of torch and of the model become an UnsupportedModelError, which says
    that the model cannot be `what`.
    """
    saved = [(module, type(module), _attributes(module)) for module in model.modules()]
    try:
        yield
    except BaseException as error:
        for module, cls, attributes in saved:
            _restore(module, cls, attributes)
        if isinstance(error, AANetError) or not isinstance(error, Exception):
            raise
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be {what}: {type(error).__name__}: {error}. The model "
            f"was not changed. Replace the layer that does not allow it, or leave its stage out of "
            f"`stages`."
        ) from error


def _attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return the attributes by name, with a copy of each container's content."""
    return {
        name: (value, copy.copy(value) if isinstance(value, (dict, list, set)) else None)
        for name, value in vars(module).items()
    }


def _restore(module: Any, cls: type, attributes: dict[str, tuple[Any, Any]]) -> None:
    if type(module) is not cls:
        module.__class__ = cls
    vars(module).clear()
    for name, (value, content) in attributes.items():
        vars(module)[name] = value
        if content is not None:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)
