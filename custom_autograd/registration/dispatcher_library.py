"""Defines an op with the dispatcher, and takes the definition back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from custom_autograd.core.names import DEFAULT, Name
from custom_autograd.registration.one_tuple import SUFFIX, enclosed, staying, text_of_output
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import definitions, dispatch
from custom_autograd.torch_private.dispatch import OpOverload


def define(record: OpRecord, dispatcher_name: Name) -> None:
    """Make the op known to the dispatcher under a name."""
    library = torch.library.Library(dispatcher_name.namespace, "FRAGMENT")
    tags = (torch.Tag.pt2_compliant_tag, *record.declaration.tags)
    library.define(f"{dispatcher_name.qualifier}{record.declaration.schema.text}", tags=tuple(dict.fromkeys(tags)))
    record.library, record.dispatcher_name = library, dispatcher_name
    record.overload = _overload(dispatcher_name)
    record.observed = dispatch.observed(record.overload)
    if record.declaration.schema.is_one_tuple:
        output = dispatcher_name.suffixed(SUFFIX)
        library.define(
            f"{output.qualifier}{text_of_output(record.declaration.schema)}", tags=tuple(dict.fromkeys(tags))
        )
        record.output = _overload(output)
    record.attached = set()
    record.dispatched = None
    record.forget()


def _overload(name: Name) -> OpOverload:
    overload: OpOverload = getattr(getattr(getattr(torch.ops, name.namespace), name.name), name.overload or DEFAULT)
    dispatch.use_python_dispatch(overload)
    return overload


def publish(record: OpRecord) -> None:
    """Let torch.library find the op by name, so that rules registered by name are registered with it."""
    if record.handle is not None and record.library is not None:
        definitions.publish(str(record.dispatcher_name), record.handle)


def undefine(record: OpRecord) -> None:
    """Take the op back from the dispatcher."""
    if record.library is not None:
        definitions.withdraw(str(record.dispatcher_name))
        dispatch.destroy(record.library)
    record.library = None


def implement(record: OpRecord, key: str, function: Callable[..., Any], *, with_keyset: bool = False) -> None:
    """Register a function at a dispatch key, once: it must look up what to do when it is called.

    Any: a kernel takes and returns what the schema says.
    """
    if key in record.attached:
        return
    assert record.library is not None  # an entry is defined before anything is attached to it
    call = enclosed(record.declaration.schema, function)
    record.library.impl(record.dispatcher_name.qualifier, call, key, with_keyset=with_keyset)
    if record.output is not None:
        record.library.impl(
            record.dispatcher_name.suffixed(SUFFIX).qualifier, staying(function), key, with_keyset=with_keyset
        )
    record.attached.add(key)


FILE = define.__code__.co_filename
"""The dispatcher notes who registered a kernel by the file that made the `Library`: this one is ours."""
