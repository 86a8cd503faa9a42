"""Ops that return a tuple of one: what their code calls, and what the dispatcher calls.

The dispatcher has one return value for `-> tuple[Tensor]`, which is a tuple; inside, it is handled as the one output.

NOTE [why an op that returns a tuple of one is two ops]
The transforms of `torch.func` find the tensors of a stack and those in its lists, and not those in a tuple: an op that
returns a tuple leaves each transform with tensors of another level, and derivatives are silently zero. Graphs with such
an op hold for one size only, and cannot be saved. So between the levels of transforms, and in graphs of torch.compile
and torch.export, runs a second op of the dispatcher, with the same kernels, that returns the one output.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from custom_autograd.core.schema import Schema
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.dispatch import OpOverload
from custom_autograd.torch_private.transforms import is_transforming

SUFFIX = "__output"
"""End of the name of the second op."""

Call = Callable[..., Any]  # Any: takes and returns what the schema says


class _Here(threading.local):
    """True while a kernel of the second op runs in this thread; what that calls stays with the second op."""

    is_in_output = False


_here = _Here()


def staying(call: Call) -> Call:
    """Return a kernel of the second op."""

    @functools.wraps(call)
    def in_output(*args: Any, **kwargs: Any) -> Any:  # Any: as above
        before = _here.is_in_output
        _here.is_in_output = True
        try:
            return call(*args, **kwargs)
        finally:
            _here.is_in_output = before

    return in_output


class Opened:
    """An overload that returns a tuple of one, called for what is in the tuple."""

    def __init__(self, overload: OpOverload, output: OpOverload) -> None:
        self._overload = overload
        self._output = output

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: as above
        """Call the op."""
        if _here.is_in_output or is_transforming():
            return self._output(*args, **kwargs)
        return self._overload(*args, **kwargs)[0]

    def redispatch(self, keys: Any, /, *args: Any, **kwargs: Any) -> Any:  # Any: a DispatchKeySet has no public type
        """Call the op at the highest of the given keys."""
        if _here.is_in_output or is_transforming():
            return self._output.redispatch(keys, *args, **kwargs)
        return self._overload.redispatch(keys, *args, **kwargs)[0]


def opened(record: OpRecord) -> Any:  # Any: called as an overload is
    """Return what calls the overload of an op for its outputs."""
    assert record.overload is not None  # an entry is defined before anything calls it
    return record.overload if record.output is None else Opened(record.overload, record.output)


def enclosed(schema: Schema, call: Call) -> Call:
    """Return what calls a function of the outputs, and returns them as the dispatcher has them."""
    if not schema.is_one_tuple:
        return call

    @functools.wraps(call)
    def in_tuple(*args: Any, **kwargs: Any) -> tuple[Any]:
        return (call(*args, **kwargs),)

    return in_tuple


def content(value: Any) -> Any:  # Any: what a user's rule returned
    """Return what is in a tuple or list of one; anything else as it is."""
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


def text_of_output(schema: Schema) -> str:
    """Return the schema of the second op."""
    given, _, _ = schema.text.rpartition(" -> ")
    return f"{given} -> {schema.outputs[0].type}"
