"""Defines an op with the dispatcher, and takes the definition back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from custom_autograd.core.names import DEFAULT, Name
from custom_autograd.registration.one_tuple import SUFFIX, enclosed, staying, text_of_output
from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private import definitions, dispatch
from custom_autograd.torch_private.dispatch import OpOverload


def define(entry: Entry, home: Name) -> None:
    """Make the op known to the dispatcher under a name."""
    library = torch.library.Library(home.namespace, "FRAGMENT")
    tags = (torch.Tag.pt2_compliant_tag, *entry.declaration.tags)
    library.define(f"{home.qualifier}{entry.declaration.schema.text}", tags=tuple(dict.fromkeys(tags)))
    entry.library, entry.home = library, home
    entry.overload = _overload(home)
    if entry.declaration.schema.is_one_tuple:
        output = home.suffixed(SUFFIX)
        library.define(f"{output.qualifier}{text_of_output(entry.declaration.schema)}", tags=tuple(dict.fromkeys(tags)))
        entry.output = _overload(output)
    entry.attached = set()
    entry.call = None
    entry.forget()


def _overload(name: Name) -> OpOverload:
    overload: OpOverload = getattr(getattr(getattr(torch.ops, name.namespace), name.name), name.overload or DEFAULT)
    return overload


def publish(entry: Entry) -> None:
    """Let torch.library find the op by name, so that rules registered by name are registered with it."""
    if entry.handle is not None and entry.library is not None:
        definitions.publish(str(entry.home), entry.handle)


def undefine(entry: Entry) -> None:
    """Take the op back from the dispatcher."""
    if entry.library is not None:
        definitions.withdraw(str(entry.home))
        dispatch.destroy(entry.library)
    entry.library = None


def implement(entry: Entry, key: str, function: Callable[..., Any], *, with_keyset: bool = False) -> None:
    """Register a function at a dispatch key, once: it must look up what to do when it is called.

    Any: a kernel takes and returns what the schema says.
    """
    if key in entry.attached:
        return
    assert entry.library is not None  # an entry is defined before anything is attached to it
    call = enclosed(entry.declaration.schema, function)
    entry.library.impl(entry.home.qualifier, call, key, with_keyset=with_keyset)
    if entry.output is not None:
        entry.library.impl(entry.home.suffixed(SUFFIX).qualifier, staying(function), key, with_keyset=with_keyset)
    entry.attached.add(key)


FILE = define.__code__.co_filename
"""The dispatcher notes who registered a kernel by the file that made the `Library`: this one is ours."""
