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
    "abs all any bool complex dict divmod enumerate float int isinstance len list map max min pow print range reversed "
    "round set slice sorted str sum tuple type zip ValueError TypeError RuntimeError AssertionError".split()
)
REACHING = frozenset({"nn", "Parameter", "load", "ops", "library", "autograd", "func", "compile", "inference_mode"})


def is_blind_to_grad_mode(function: Callable[..., object]) -> bool:
    """Whether switching grad mode off around a kernel can make no difference."""
    if type(function) is not FunctionType or function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return False
    modules = (torch, math, sys.modules.get("numpy", math))
    for instruction in _instructions(function.__code__):
        name = str(instruction.argval)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = function.__globals__.get(name)
            if not any(value is module for module in modules) and (value is not None or name not in BUILTINS):
                return False
        elif instruction.opname.startswith(("IMPORT", "STORE_GLOBAL", "DELETE_GLOBAL")):
            return False
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and (
            name in REACHING or "grad" in name or "_C" in name
        ):
            return False
    return True


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Those of a function and of the functions that it makes."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
