"""Inlining: compiled graphs hold what an op does in place of the op, so that its neighbours can fuse with it.

register_kernel(..., inline=True)    the operations and launches of that kernel, where it would run
custom_op(..., inline="reference")   else the operations of the reference

The op is taken apart where AOTAutograd makes graphs functional, below autograd: gradients are those of the op's rules,
as everywhere else. `torch.library.triton_op` is taken apart there too. An exported program keeps the op. The reference
or the kernel returns in a graph what the op returns, or raises:

body      -> writes to an argument?              raises
          -> raises?                             the error says that it is inlined
          -> an argument's memory, or twice one? copied
          -> other strides than the fake's?      copied into those
          -> another shape or dtype?             raises
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError, KernelUnavailable
from custom_autograd.execution import functional_op
from custom_autograd.execution.bind import Binder
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.kernels.launches import is_interpreted, recorded
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.dispatcher_library import enclosed, implement_torch_dispatch
from custom_autograd.registration.kernel import Kernel
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import FakeRule, Inline
from custom_autograd.torch_private import dispatch, fakes
from custom_autograd.values.kernel_results import ResultReader
from custom_autograd.values.tensors import first_tensor, tensors_in

REFERENCE = "reference"
_is_switched_off: ContextVar[bool] = ContextVar("is_switched_off", default=False)


class Inlining(Capability):
    """A kernel or the reference in place of the op."""

    name = "inline"

    def attach(self, record: OpRecord) -> None:
        """Register the rule for the mode that makes graphs functional, once: the mode has one for each op."""
        if record.is_inlined or functional_op.is_needed(record.declaration.schema, record.declaration.tags):
            implement_torch_dispatch(record, dispatch.FunctionalTensorMode, _rule(record))

    def describe(self, record: OpRecord) -> str:
        """Return what compiled graphs hold."""
        kernels = [kernel for kernel in record.kernels.all() if kernel.is_inlined]
        if kernels:
            titles = " and the ".join(f"{kernel.label} ({kernel.location})" for kernel in kernels)
            return f"registered: compiled graphs hold the {titles}"
        if record.registrations.get(Inline) is None:
            return "none: a compiled graph holds the op as one node"
        if record.reference() is None:
            return f"declared ({record.declaration.location}), and there is no reference: compiling raises"
        return f"declared ({record.declaration.location}): a compiled graph holds the reference"


@contextmanager
def without_inlining() -> Iterator[None]:
    """Leave every op in compiled graphs as it is, while the context is open; caches on disk do not know of it."""
    token = _is_switched_off.set(True)
    try:
        yield
    finally:
        _is_switched_off.reset(token)


def _rule(record: OpRecord) -> Callable[..., Any]:
    bind, reader = Binder(record.declaration.schema), ResultReader(record.declaration, str)
    is_needed = functional_op.is_needed(record.declaration.schema, record.declaration.tags)
    stay = functional_op.in_mode(record) if is_needed else dispatch.FunctionalTensorMode.__torch_dispatch__

    def rule(
        mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch passes it
        if _is_switched_off.get() or torch.compiler.is_exporting():
            return stay(mode, function, types, args, kwargs)
        traced = find_traced(record, bind, args, kwargs or {})
        if traced is None:
            return stay(mode, function, types, args, kwargs)
        try:
            with mode:
                body = partial(_results, record, traced, bind, reader)
                return enclosed(record.declaration.schema, body)(*args, **(kwargs or {}))
        except KernelUnavailable as error:
            if traced.kernel is None:
                raise
            record.kernels.pass_over(traced.kernel, error)
        return rule(mode, function, types, args, kwargs)

    return rule


@dataclass(frozen=True, slots=True)
class Traced:
    """A function that takes the place of an op in a graph.

    Attributes:
        label: the words for it in messages: "reference", "cuda kernel".
        location: file:line of it.
        function: the function; None if there is no reference.
        kernel: the kernel that it belongs to, which takes what the schema declares; None for the reference.
    """

    label: str
    location: str
    function: Callable[..., Any] | None
    kernel: Kernel | None


def find_traced(record: OpRecord, bind: Binder, args: Any, kwargs: Any) -> Traced | None:  # Any: as the schema declares
    """Return what takes the place of a call in a graph, or None if the op stays."""
    kernel = _find_kernel(record, bind, args, kwargs)
    if kernel is not None:
        return Traced(kernel.label, kernel.location, kernel.function, kernel)
    if record.registrations.get(Inline) is not None:
        return Traced("reference", record.reference_location, record.reference(), None)
    return None


def _find_kernel(record: OpRecord, bind: Binder, args: Any, kwargs: Any) -> Kernel | None:  # Any: as above
    """Return the kernel that would run, if it is to be inlined."""
    if is_interpreted() or not record.kernels.is_inlined:
        return None
    like = first_tensor(tensors_in([*args, *kwargs.values()]))
    positional, keywords = bind.user_call(bind.arguments(*args, **kwargs))  # the dispatcher leaves out defaults
    for kernel in record.kernels.candidates(None if like is None else like.device.type):
        if kernel.when is None or kernel.when.refusal(positional, keywords) is None:
            return kernel if kernel.is_inlined else None
    return None


def _results(
    record: OpRecord, traced: Traced, bind: Binder, reader: ResultReader, /, *args: Any, **kwargs: Any
) -> Any:  # Any: what the schema declares
    """Return the results of a function on tensors of the mode that makes graphs functional, as the op returns them."""
    arguments = bind.arguments(*args, **kwargs)
    before = {id(tensor): dispatch.writes_to(tensor) for tensor in tensors_in(list(arguments.values()))}
    positional, keywords = bind.user_call(arguments)
    result = _run(record, traced, positional, keywords)
    if traced.kernel is None:  # of launches, PyTorch often knows no better than that they write to every tensor
        _check_writes(record, traced, arguments, before)
    found = reader.read(result, arguments, f"{traced.label}, {traced.location},")
    return _as_of_the_op(record, traced, bind, arguments, found)


def _run(record: OpRecord, traced: Traced, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if traced.function is None:
        raise record.declaration.error(
            KernelError,
            "a compiler is to inline the reference, and there is none",
            do="register_reference the op in PyTorch operations, or declare it without inline='reference'",
        )
    is_written = bool(record.declaration.schema.mutated_arguments)
    # AOTAutograd cuts the history of an input that is written under no_grad alone, and so the gradients of the op.
    unrecorded = dispatch.below_autograd() if is_written else torch.no_grad()
    try:
        with unrecorded, recorded():
            return traced.function(*args, **kwargs)
    except KernelUnavailable:
        raise
    except Exception as error:
        remedy = "declare the op without inline='reference'" if traced.kernel is None else "register it without inline="
        raise record.declaration.error(
            KernelError,
            f"the {traced.label}, which is inlined into the compiled graph, raises",
            found=f"{type(error).__name__}: {error}",
            rule=traced.location,
            do=f"write it in operations that a compiler can trace, or {remedy}",
        ) from error


def _check_writes(record: OpRecord, traced: Traced, arguments: dict[str, Any], before: dict[int, int]) -> None:
    """Raise if a function wrote to an argument that is not declared as mutated."""
    for argument in record.declaration.schema.tensor_arguments:
        written = (dispatch.writes_to(one) != before[id(one)] for one in tensors_in([arguments[argument.name]]))
        if not argument.is_mutated and any(written):
            raise record.declaration.error(
                KernelError,
                f"the {traced.label} writes to argument '{argument.name}', which is not declared as mutated",
                rule=traced.location,
                do=f"compute without writing to it, or declare mutates_args={argument.name!r}",
            )


def _as_of_the_op(record: OpRecord, traced: Traced, bind: Binder, arguments: dict[str, Any], found: Any) -> Any:
    """Return the results of a function as the op returns them: new memory, with the metadata of the fake."""
    outputs = record.declaration.schema.outputs
    results = list(found) if len(outputs) > 1 else [found]
    taken = {dispatch.memory_of(tensor) for tensor in tensors_in(list(arguments.values()))} | {None}
    expected = _expected(record, traced, bind, arguments)
    for position, output in enumerate(outputs):
        if output.alias_of is None and isinstance(results[position], Tensor):
            results[position] = _own(results[position], taken)
            if expected is not None:
                results[position] = _laid_out(record, traced, output.name, results[position], expected[position])
        elif output.alias_of is None and isinstance(results[position], (list, tuple)):
            results[position] = [_own(one, taken) for one in results[position]]
    return tuple(results) if len(outputs) > 1 else results[0]


def _own(tensor: Any, taken: set[int | None]) -> Any:  # Any: a tensor, or None in a list
    """Return a result, copied if its memory is that of an argument or of another result."""
    if not isinstance(tensor, Tensor):
        return tensor
    own = tensor.clone() if dispatch.memory_of(tensor) in taken else tensor
    taken.add(dispatch.memory_of(own))
    return own


def _expected(record: OpRecord, traced: Traced, bind: Binder, arguments: dict[str, Any]) -> list[Any] | None:
    """Return the results of the fake, one for each output, or None if there is no fake to compare with."""
    rule = record.registrations.get(FakeRule)
    fake = rule.function if rule is not None else record.reference() if traced.kernel is not None else None
    if fake is None:
        return None
    with dispatch.unrecorded(), torch.no_grad():
        positional, keywords = bind.user_call({name: _behind(value) for name, value in arguments.items()})
        try:
            found = fakes.call_without_symbols(fake, *positional, **keywords)
        except fakes.SizeDependsOnDataError:
            return None
    return list(found) if len(record.declaration.schema.outputs) > 1 else [found]


def _behind(value: Any) -> Any:  # Any: an argument
    if type(value) in (list, tuple):
        return type(value)(map(_behind, value))
    return dispatch.behind(value) if isinstance(value, Tensor) else value


def _laid_out(record: OpRecord, traced: Traced, output: str, result: Tensor, expected: Any) -> Tensor:
    """Return a result with the strides that the fake promises."""
    if not isinstance(expected, Tensor):
        return result
    if result.dtype != expected.dtype or _differ(result.shape, expected.shape):
        raise record.declaration.error(
            KernelError,
            f"output '{output}' of the {traced.label}, which is inlined, is not what the fake returns",
            expected=f"{expected.dtype} {tuple(expected.shape)}",
            found=f"{result.dtype} {tuple(result.shape)}",
            rule=traced.location,
            do="return the same from both: the rest of the graph was made for what the fake returns",
        )
    if not _are_strides_other(result, expected):
        return result
    sizes, strides = tuple(result.shape), expected.stride()
    return torch.empty_strided(sizes, strides, dtype=result.dtype, device=result.device).copy_(result)


def _are_strides_other(result: Tensor, expected: Tensor) -> bool:
    """Return True if strides may differ where they matter."""
    rows = zip(result.shape, result.stride(), expected.stride(), strict=True)
    return any(str(mine) != str(theirs) for size, mine, theirs in rows if not (_is_known(size) and size < 2))


def _differ(found: Sequence[Any], expected: Sequence[Any]) -> bool:  # Any: ints and SymInts
    """Return True if sizes differ for certain; nothing is asked of a symbol, which would guard on it."""
    if len(found) != len(expected):
        return True
    pairs = zip(found, expected, strict=True)
    return any(_is_known(one) and _is_known(other) and one != other for one, other in pairs)


def _is_known(size: Any) -> bool:  # Any: an int or a SymInt
    return isinstance(size, int)
