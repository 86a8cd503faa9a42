"""Runs a user's rule, whose errors say which rule of which op they left; and the `needs` and `meta` of rules."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.device_types import ONE_DEVICE, error_of_devices, is_about_devices, without_numbers
from custom_autograd.core.errors import GradientError, Origin
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import advise, quote
from custom_autograd.core.metadata import LOW_PRECISION
from custom_autograd.registration.rule_types import Rule
from custom_autograd.torch_private.fakes import WITHOUT_DATA


class UnknownNameError(GradientError, AttributeError):
    """A rule reads an attribute of `needs` or `meta` that is not there; `note_rule` adds which rule of which op."""


class Named:
    """Values by name, read as attributes. Plain enough for compiled autograd to trace."""

    def __init__(self, values: Mapping[str, Any]) -> None:  # Any: bools, lists of bools, or metadata
        if torch.compiler.is_dynamo_compiling():  # Dynamo of torch 2.11 cannot trace `vars(self).update`
            for name, value in values.items():
                setattr(self, name, value)
        else:
            vars(self).update(values)  # an argument may have a name that every object has, such as __class__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __getattr__(self, name: str) -> Any:  # Any: as above
        if name.startswith("__"):
            raise AttributeError(name)
        names = list(vars(self))
        problem = f"a rule reads '{name}' of needs or meta, which is not there"
        raise UnknownNameError("a rule", problem, expected=quote(names), found=f"'{name}'", do=advise(name, names))


def noted(op: str, rule: Rule, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a rule's function (or another one of the same rule) that notes where an exception came from."""
    # Any: rules take and return what their kind says.
    chosen = rule.function if function is None else function

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return chosen(*args, **kwargs)
        except Exception as error:
            explain_rule(error, op, rule)
            raise

    return call


def explain_rule(error: BaseException, op: str, rule: Rule) -> None:
    """Note on an exception that it left a rule; raise another one if the rule read memory that is not there."""
    note_rule(error, op, rule)
    if type(error) in (RuntimeError, NotImplementedError) and any(text in str(error) for text in WITHOUT_DATA):
        raise GradientError(
            op,
            f"the {rule.title} rule reads the memory of a tensor that has none",
            expected="differentiable PyTorch operations, or ops: torch.func and torch.compile run the rule on tensors "
            "without memory, which NumPy, Triton and native code cannot read",
            found=str(error).partition("\n")[0],
            rule=rule.where,
            do="make that part of the rule an op of its own (custom_op), and call that op in the rule",
        ) from error


ABOUT_DTYPES = re.compile("dtype|scalar type")


def note_rule(error: BaseException, op: str, rule: Rule) -> None:
    """Mark an exception that leaves a rule, and note which one; if it is about devices, which tensors are where."""
    mark(error, rule.location)
    add_note(error, f"raised in the {rule.title} rule of {op}, {rule.location}")
    if isinstance(error, UnknownNameError):
        error.op, error.rule = op, rule.where
    arguments, is_explained = _arguments_in(error, rule.function), isinstance(error, GradientError)
    if is_about_devices(error):
        told = error_of_devices(Origin(op, rule.location), arguments, ONE_DEVICE)
        if told is not None:
            add_note(error, str(told.problem))
    floating = {n: x for n, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()}
    dtypes = {tensor.dtype for tensor in floating.values()}
    if len(dtypes) > 1 and dtypes & LOW_PRECISION and ABOUT_DTYPES.search(str(error)) and not is_explained:
        found = ", ".join(f"'{name}' is {tensor.dtype}" for name, tensor in floating.items())
        device_type = next(iter(floating.values())).device.type
        add_note(error, f"{found}; if the forward ran under autocast: op.register_autocast({device_type!r}, 'keep')")


def mark(error: BaseException, location: str) -> None:
    """Keep on an exception which registered function it leaves."""
    with contextlib.suppress(Exception):  # an exception that takes no attribute counts more than the mark
        setattr(error, MARK, location)


def rule_left_by(error: BaseException) -> str | None:
    """Return file:line of the rule that an exception left; None if it left none."""
    return getattr(error, MARK, None)


MARK = "custom_autograd_rule"
"""The attribute of an exception that a rule sets which it leaves."""


def _arguments_in(error: BaseException, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a function through which an exception went, as they were at that moment."""
    # Native code calls rules too, and keeps no arguments by name.
    code, trace = getattr(function, "__code__", None), error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    if trace is None or code is None:
        return {}
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = {name: trace.tb_frame.f_locals.get(name) for name in names}
    return {name: without_numbers(value) for name, value in found.items()}


def note_reference(error: BaseException, op: str, reference: Callable[..., Any]) -> None:
    """Mark an exception that leaves a reference from which something is derived, and note what it must be made of."""
    location = location_of(reference)
    mark(error, location)
    must = "gradients and batching are derived from it, so it must use differentiable PyTorch operations only"
    add_note(error, f"raised in the reference of {op}, {location}: {must}")


class NoteError(RuntimeError):
    """What is noted on an exception, as its cause: Python 3.10 shows no notes."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, once; on Python 3.10 as the end of its chain of causes."""
    attach: Callable[[str], None] | None = getattr(error, "add_note", None)
    if attach is not None:
        if note not in getattr(error, "__notes__", ()):
            with contextlib.suppress(Exception):  # an exception that takes no note counts more than the note
                attach(note)
        return
    last = error
    for last in causes_of(error):
        if isinstance(last, NoteError) and str(last) == note:
            return
    cause = NoteError(note)
    if not last.__suppress_context__:  # what has a cause does not show what it was raised in the midst of
        cause.__context__ = last.__context__
    last.__cause__ = cause


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, the one that it was raised from, and so on; one may have been raised from itself."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__
