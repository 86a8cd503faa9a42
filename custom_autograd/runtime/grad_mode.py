"""Whether a kernel could tell if grad mode is on, when none of its arguments requires a gradient.

Kernels run with grad mode off. Switching it off and on again takes a tenth of a direct call, and changes nothing for a
kernel that names only its arguments, harmless builtins, and the modules below: it reaches no other tensor.
"""

from __future__ import annotations

import dis
import math
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType

import torch

BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "isinstance", "len", "list"}
    | {"max", "min", "pow", "range", "reversed", "round", "slice", "sorted", "sum", "tuple", "zip", "ValueError"}
)
REACHING = frozenset({"nn", "Parameter", "load", "ops", "library", "autograd", "func", "compile", "inference_mode"})


def is_blind_to_grad_mode(function: Callable[..., object]) -> bool:
    """Whether switching grad mode off around a kernel can make no difference."""
    if type(function) is not FunctionType or function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return False
    return all(_is_harmless(instruction, function) for instruction in _instructions(function.__code__))


def _is_harmless(instruction: dis.Instruction, function: FunctionType) -> bool:
    kind, name = instruction.opname, str(instruction.argval)
    if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
        value = function.__globals__.get(name)
        modules = (torch, math, sys.modules.get("numpy", math))
        return any(value is module for module in modules) or (value is None and name in BUILTINS)
    if kind in ("LOAD_ATTR", "LOAD_METHOD"):
        return name not in REACHING and "grad" not in name and "_C" not in name
    return not kind.startswith(("IMPORT", "STORE_GLOBAL", "DELETE_GLOBAL"))


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Those of a function and of the functions that it makes."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
