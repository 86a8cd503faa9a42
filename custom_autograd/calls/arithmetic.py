"""Tell whether the code of a kernel or a rule only adds, subtracts and multiplies its arguments.

Kernels run with grad mode off. Switching it off and on again takes a tenth of a direct call, and is left out for a
kernel that runs the same: one that does nothing but add, subtract and multiply its arguments and constants, and collect
the results. Its arguments are plain tensors, numbers, texts and lists of those, as the guard of a direct call found. So
these operators are those of `torch.Tensor` itself, and none of them makes a tensor that requires a gradient.
Native code runs such a kernel, or rule, below autograd: see NOTE [arithmetic runs below autograd] in
native/source/arithmetic.h. A matrix product does not count: PyTorch composes it of other operations.

Nothing else is allowed, because it could reach a tensor that requires a gradient, or code that reads the mode: a
global, a closure or a default value may be anything, and be replaced later; an attribute, even a method, may be one
that was set on the tensor; a function may be given `requires_grad=True`; `1 / x` looks up `reciprocal` of `x`.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import FunctionType

PLUMBING = (
    "BUILD_CONST_KEY_MAP",
    "BUILD_LIST",
    "BUILD_MAP",
    "BUILD_TUPLE",
    "CACHE",
    "LOAD_CONST",
    "LOAD_SMALL_INT",
    "NOP",
    "RESUME",
    "RETURN_CONST",
    "RETURN_VALUE",
)
OPERATORS = ("UNARY_NEGATIVE", "BINARY_OP", "BINARY_ADD", "BINARY_SUBTRACT", "BINARY_MULTIPLY")
CONSTANTS = frozenset({bool, complex, float, int, str, type(None)})


def is_arithmetic(function: Callable[..., object]) -> bool:
    """Return True if the code of a function only adds, subtracts and multiplies its arguments.

    Args:
        function: a kernel or a rule; called with plain tensors, numbers, texts, and lists of those.
    """
    if type(function) is not FunctionType or function.__defaults__ or function.__kwdefaults__:
        return False
    code = function.__code__
    if code.co_names or not all(map(_is_plain, code.co_consts)):
        return False
    text = code.co_code
    operations, start = text[::2], 0
    for _ in range(operations.count(BINARY_OP)):
        start = operations.index(BINARY_OP, start) + 1
        if text[2 * start - 1] not in ARITHMETIC:
            return False
    return HARMLESS.issuperset(operations)


def _is_plain(constant: object) -> bool:
    """Return True for a constant, or a tuple of some, such as the keys of a dict."""
    return type(constant) in CONSTANTS or (type(constant) is tuple and all(map(_is_plain, constant)))


def _arithmetic() -> frozenset[int]:
    """Return by which arguments of BINARY_OP this Python adds, subtracts and multiplies."""
    code = compile("x + y, x - y, x * y", "", "eval")
    return frozenset(one.arg for one in dis.get_instructions(code) if one.opcode == BINARY_OP and one.arg is not None)


BINARY_OP = dis.opmap.get("BINARY_OP", 0)  # Python 3.10 has an operation for each operator, and none of this number
HARMLESS = frozenset(
    number
    for name, number in dis.opmap.items()
    if name in PLUMBING or name in OPERATORS or name.startswith(("LOAD_FAST", "STORE_FAST"))
)
"""The operations that it may have; the operator of BINARY_OP is its argument."""
ARITHMETIC = _arithmetic()
