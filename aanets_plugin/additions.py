"""Finds out from the code of a class whether its forward adds tensors, as a residual block does.

The code is read and never run: a forward may need an input, and may change the module.
"""

import dis
import functools
from collections.abc import Iterator
from inspect import isfunction
from types import CodeType, FunctionType
from typing import Any

_SIZES = {"shape", "size", "ndim", "dim", "numel", "len", "int", "float", "range", "max", "min"}
"""Names that give numbers. A sum with nothing but such a name is not a residual connection."""


@functools.cache
def adds_tensors(cls: Any) -> bool:
    """Whether the forward of this class, or a method of the class that it calls, adds tensors.

    Methods of torch's own layers are not looked into.
    """
    own = [base for base in cls.__mro__ if not base.__module__.startswith("torch.nn.")]
    names = {name for base in own if base is not object for name in vars(base)}
    seen: set[FunctionType] = set()
    pending = _methods(own, "forward")[:1]
    while pending:
        place, function = pending.pop()
        if function in seen:
            continue
        seen.add(function)
        for code in _codes(function.__code__):
            if _adds_tensors(code):
                return True
            for name in {*code.co_names} & names:
                methods = _methods(own, name)
                pending += methods[:1]
                if "super" in code.co_names:
                    pending += [(at, method) for at, method in methods if at > place][:1]
    return False


def _methods(classes: list[Any], name: str) -> list[tuple[int, FunctionType]]:
    """Return the methods of this name with their places, in the order in which Python looks."""
    found = [(place, vars(cls).get(name)) for place, cls in enumerate(classes)]
    return [(place, method) for place, method in found if isfunction(method)]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _adds_tensors(code: CodeType) -> bool:
    """Whether a function adds two values of which neither is a number, as far as its code shows."""
    steps: list[dis.Instruction] = []
    numbers: set[str] = set()  # variables
    unpacked = False
    for step in dis.get_instructions(code):
        operator = step.argrepr if step.opname == "BINARY_OP" else step.opname
        if operator in ("+", "+=", "BINARY_ADD", "INPLACE_ADD"):
            right = _operand(steps)
            left = _operand(steps[: len(steps) - len(right)])
            if not _is_number(right, numbers) and not _is_number(left, numbers):
                return True
        elif step.argval in ("add", "add_"):
            return True
        elif step.opname.startswith("STORE_FAST"):
            stored = {step.argval} if isinstance(step.argval, str) else {*step.argval}
            is_number = unpacked or _is_number(_operand(steps), numbers)
            numbers = numbers | stored if is_number else numbers - stored
        elif step.opname == "UNPACK_SEQUENCE":
            unpacked = _is_number(_operand(steps), numbers)
        else:
            unpacked = False
        steps.append(step)
    return False


def _operand(steps: list[dis.Instruction]) -> list[dis.Instruction]:
    """Return the last instructions that together put one value on the stack."""
    depth = 0
    for start in range(len(steps) - 1, -1, -1):
        depth += dis.stack_effect(steps[start].opcode, steps[start].arg, jump=False)
        if depth == 1:
            return steps[start:]
    return []


def _is_number(operand: list[dis.Instruction], numbers: set[str]) -> bool:
    """Whether the operand is made of constants, sizes and `numbers` alone."""
    size_of = False
    for step, after in zip(operand, [*operand[1:], None], strict=True):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"):
            if step.argval not in _SIZES:
                return False
            size_of |= step.opname == "LOAD_GLOBAL"
        elif step.opname.startswith("LOAD_FAST") and not size_of:
            loaded = {step.argval} if isinstance(step.argval, str) else {*step.argval}
            if not loaded <= numbers and (after is None or after.argval not in _SIZES):
                return False
    return any(step.opname.startswith("LOAD_") for step in operand)
