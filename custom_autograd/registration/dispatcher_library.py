"""Defines an op with the dispatcher, also one that returns a tuple of one, and takes the definition back."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from custom_autograd.registration.registry import Definition, OpRecord
from custom_autograd.schema.names import DEFAULT, Name
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private import definitions, dispatch
from custom_autograd.torch_private.dispatch import OpOverload
from custom_autograd.torch_private.transforms import is_transforming

# Ops that return a tuple of one: what their code calls, and what the dispatcher calls.
#
# The dispatcher has one return value for `-> tuple[Tensor]`, which is a tuple; inside, it is handled as the one output.
#
# NOTE [why an op that returns a tuple of one is two ops]
# The transforms of `torch.func` find the tensors of a stack and those in its lists, and not those in a tuple: an op
# that returns a tuple leaves each transform with tensors of another level, and derivatives are silently zero. Graphs
# with such an op hold for one size only, and cannot be saved. So between the levels of transforms, and in graphs of
# torch.compile and torch.export, runs a second op of the dispatcher, with the same kernels, that returns the one
# output.


SUFFIX = "__output"
"""End of the name of the second op."""

Call = Callable[..., Any]  # Any: takes and returns what the schema declares


class _InOutput(threading.local):
    """True while a kernel of the second op runs in this thread; what that calls stays with the second op."""

    is_in_output = False


_here = _InOutput()


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
    return record.overload if record.definition.output is None else Opened(record.overload, record.definition.output)


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


def define(record: OpRecord, dispatcher_name: Name) -> None:
    """Make the op known to the dispatcher under a name."""
    library, schema = torch.library.Library(dispatcher_name.namespace, "FRAGMENT"), record.declaration.schema
    tags = tuple(dict.fromkeys((torch.Tag.pt2_compliant_tag, *record.declaration.tags)))
    keep_at_exit(library)
    definition = Definition(dispatcher_name, library)
    library.define(f"{definition.qualifier}{schema.text}", tags=tags)
    record.definition = definition
    record.overload = _overload(dispatcher_name)
    record.definition.observed = dispatch.observed(record.overload)
    if schema.is_one_tuple:
        output, given = dispatcher_name.suffixed(SUFFIX), schema.text.rpartition(" -> ")[0]
        library.define(f"{output.qualifier}{given} -> {schema.outputs[0].type}", tags=tags)
        record.definition.output = _overload(output)
    record.dispatched = None
    record.forget()


def keep_at_exit(library: torch.library.Library) -> None:
    """Let the ops of a library outlive the exit handlers of the process.

    PyTorch takes them back in a handler of its own, and one that was registered earlier runs later: a call in that
    handler would read freed memory.
    """
    for reference in weakref.getweakrefs(library):
        finalizer = reference.__callback__
        if isinstance(finalizer, weakref.finalize):
            finalizer.atexit = False


def _overload(name: Name) -> OpOverload:
    overload: OpOverload = getattr(getattr(getattr(torch.ops, name.namespace), name.name), name.overload or DEFAULT)
    dispatch.use_python_dispatch(overload)
    return overload


def publish(record: OpRecord) -> None:
    """Let torch.library find the op by name, so that rules registered by name are registered with it."""
    if record.handle is not None and record.definition.library is not None:
        definitions.publish(str(record.definition.name), record.handle)


def undefine(record: OpRecord) -> None:
    """Take the op back from the dispatcher."""
    if record.definition.library is not None:
        definitions.withdraw(str(record.definition.name))
        dispatch.destroy(record.definition.library)
    record.definition.library = None


def implement(record: OpRecord, *keys: str, make: Callable[[], Callable[..., Any]], with_keyset: bool = False) -> None:
    """Register a function at dispatch keys, once: it is made then, and must look up what to do when it is called."""
    # Any: a kernel takes and returns what the schema declares.
    definition, register = record.definition, definitions.implement_unnoted
    if keys[0] in definition.attached:
        return
    assert definition.library is not None  # an entry is defined before anything is attached to it
    function = make()
    for key in keys:
        if definition.output is not None:
            output = definition.name.suffixed(SUFFIX).qualifier
            register(definition.library, output, staying(function), key, with_keyset=with_keyset)
        own = function if definition.output is None else enclosed(record.declaration.schema, function)
        register(definition.library, definition.qualifier, own, key, with_keyset=with_keyset)
        definition.attached.add(key)
    definitions.changes.note()


def implement_torch_dispatch(record: OpRecord, cls: type, function: Callable[..., Any]) -> None:
    """Register what the op does for a tensor subclass or a mode, once; as with `implement`."""
    if cls in record.definition.attached:
        return
    assert record.definition.library is not None  # as above
    dispatch.register_torch_dispatch(record.definition.library, record.definition.qualifier, cls, function)
    record.definition.attached.add(cls)


FILE = define.__code__.co_filename
"""The dispatcher notes who registered a kernel by the file that made the `Library`: this one is ours."""
