"""Source of a call of a kernel, and of the look at what it returned."""

from __future__ import annotations

import dis
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from torch import Tensor

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.execution.source import Source, dict_of, tuple_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private.functions import is_view
from custom_autograd.values.user_code import add_note


def helpers(record: OpRecord) -> dict[str, Any]:
    """Return what the source names (Any: classes and functions)."""
    return {
        "KernelUnavailable": KernelUnavailable,
        "instead": record.kernels.instead,
        "note_kernel": partial(note_kernel, record),
    }


def note_kernel(record: OpRecord, function: Callable[..., Any], error: Exception) -> None:
    """Note on an exception that leaves a kernel which one it is, unless it names the op already."""
    if getattr(error, "op", None) != record.name:
        add_note(error, f"raised in the {record.kernels.describe(function)} of {record.name}")


def write_kernel_call(source: Source, call: str, condition: str) -> None:
    """Write a call of a kernel with grad mode off."""
    with source.block(f"if {condition}"):
        write_call_or_another(source, call)
    with source.block("else"):  # the switch is inside: an exception of a signal handler may follow it at once
        write_call_or_another(source, call, before="$set_grad_enabled(False)")
        with source.block("finally"):
            source.line("$set_grad_enabled(True)")


def write_call_or_another(source: Source, call: str, *, before: str = "") -> None:
    """Write a call of a kernel, and of another where it turns out not to be available; a try costs nothing.

    Other exceptions get a note on the kernel.
    """
    with source.block("try"):
        if before:
            source.line(before)
        source.line(f"$result = {call}")
    with source.block("except $KernelUnavailable as $error"):
        source.line(f"$result = {call.replace('$function', '$instead($function, $error)', 1)}")
    with source.block("except $Exception as $error"):
        source.lines("$note_kernel($function, $error)", "raise")


def write_reading(source: Source, schema: Schema, condition: str) -> None:
    """Write a look at `$result` that takes constant time, and what reads it properly where that finds anything odd."""
    tensors = dict_of([argument.name for argument in schema.tensor_arguments])
    reading = f"$result = $read_result($result, {tensors}, $function, is_checked={condition})"
    if len(schema.outputs) == 1 and schema.outputs[0].type == "Tensor[]" and schema.outputs[0].alias_of is None:
        inputs = tuple_of([argument.name for argument in schema.tensor_arguments])
        with source.block(f"if $type($result) is not $list or not $are_new($result, {inputs}, {condition})"):
            source.line(reading)
        return
    if not schema.outputs:
        with source.block("if $result is not None"):
            source.line(reading)
        return
    if any(output.type != "Tensor" or output.alias_of is not None for output in schema.outputs):
        source.line(reading)
        return
    shapeless, shared = _oddities(schema)
    asked = {"True": shared, "False": []}.get(condition, [f"({condition} and ({' or '.join(shared)}))"])
    with source.block(f"if {' or '.join([*shapeless, *asked])}"):
        source.line(reading)


def are_new(results: list[Any], inputs: tuple[Any, ...], is_checked: bool) -> bool:
    """Return True if all results are plain tensors, and none is an input, a view or there twice (Any: of a kernel)."""
    if not is_checked:
        return all(type(result) is Tensor for result in results)
    seen = {id(tensor) for value in inputs for tensor in (value if isinstance(value, (list, tuple)) else (value,))}
    for result in results:
        if type(result) is not Tensor or is_view(result) or id(result) in seen:
            return False
        seen.add(id(result))
    return True


def _oddities(schema: Schema) -> tuple[list[str], list[str]]:
    """Return tests of results that are not as many plain tensors as they should be, or that may share memory."""
    count = len(schema.outputs)
    names = ["$result"] if count == 1 else [f"$result[{index}]" for index in range(count)]
    inputs = [argument.name for argument in schema.tensor_arguments if not argument.is_tensor_list]
    shapeless = [] if count == 1 else [f"$type($result) is not $tuple or $len($result) != {count}"]
    shapeless += [f"$type({name}) is not $Tensor" for name in names]
    shared = []
    for index, name in enumerate(names):
        shared += [f"{name} is {other}" for other in [*inputs, *names[:index]]]
        shared.append(f"{name}._is_view()")
    return [*shapeless, *(shared if schema.may_return_inputs else [])], shared  # the dispatcher must not see an input


# Tell whether the code of a kernel or a rule only adds, subtracts and multiplies its arguments.
#
# Kernels run with grad mode off. Switching it off and on again takes a tenth of a direct call, and is left out for a
# kernel that runs the same: one that does nothing but add, subtract and multiply its arguments and constants, and
# collect the results. Its arguments are plain tensors, numbers, texts and lists of those, as the guard of a direct call
# found. So these operators are those of `torch.Tensor` itself, and none of them makes a tensor that requires a
# gradient. Native code runs such a kernel, or rule, below autograd: see NOTE [arithmetic runs below autograd] in
# native/source/arithmetic.h. A matrix product does not count: PyTorch composes it of other operations.
#
# Nothing else is allowed, because it could reach a tensor that requires a gradient, or code that reads the mode: a
# global, a closure or a default value may be anything, and be replaced later; an attribute, even a method, may be one
# that was set on the tensor; a function may be given `requires_grad=True`; `1 / x` looks up `reciprocal` of `x`.


PLUMBING = (
    "BUILD_CONST_KEY_MAP",
    "BUILD_LIST",
    "BUILD_MAP",
    "BUILD_TUPLE",
    "CACHE",
    "LOAD_COMMON_CONSTANT",  # on Python 3.15 also None, True, False, -1 and ""
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
    """Return True if the code of a function only adds, subtracts and multiplies its arguments."""
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
