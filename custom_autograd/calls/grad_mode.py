"""Whether a kernel can tell that grad mode is on, when no tensor that it is given requires a gradient.

Kernels run with grad mode off. Switching it off and on again takes a tenth of a direct call, and is left out only for a
kernel that provably runs the same: one that does nothing but add, subtract and multiply its arguments and constants.
Its arguments are plain tensors, numbers, texts and lists of those, as the guard of a direct call has found. So these
operators are those of `torch.Tensor` itself, and none of them makes a tensor that requires a gradient.

Nothing else is allowed, because it could reach a tensor that requires one, or code that reads the mode: a global, a
closure or a default value may be anything, and be replaced later; an attribute, even a method, may be one that was set
on the tensor; a function may be given `requires_grad=True`; `1 / x` looks up the method `reciprocal` of `x`.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import FunctionType

OPERATORS = ("+", "-", "*", "@")
OLD_OPERATORS = ("BINARY_ADD", "BINARY_SUBTRACT", "BINARY_MULTIPLY", "BINARY_MATRIX_MULTIPLY")  # of Python 3.10
PLUMBING = ("BUILD_LIST", "BUILD_TUPLE", "CACHE", "LOAD_SMALL_INT", "NOP", "RESUME", "RETURN_VALUE", "UNARY_NEGATIVE")
CONSTANTS = (bool, complex, float, int, str, type(None))


def is_blind_to_grad_mode(function: Callable[..., object]) -> bool:
    """Return True only if switching grad mode off around a kernel makes no difference.

    Args:
        function: the kernel; called with plain tensors that require no gradient, numbers, texts, and lists of those.
    """
    if type(function) is not FunctionType or function.__defaults__ or function.__kwdefaults__:
        return False
    return all(map(_is_harmless, dis.get_instructions(function.__code__)))


def _is_harmless(instruction: dis.Instruction) -> bool:
    kind = instruction.opname
    if kind in ("LOAD_CONST", "RETURN_CONST"):
        return type(instruction.argval) in CONSTANTS
    if kind == "BINARY_OP":
        return instruction.argrepr in OPERATORS
    return kind in PLUMBING or kind in OLD_OPERATORS or kind.startswith(("LOAD_FAST", "STORE_FAST"))
