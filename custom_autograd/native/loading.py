"""Native calls for the ops of this process: asked for when a first direct call is proven, attached op by op."""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

from custom_autograd.dispatch.direct_calls import DirectCallTable, when_proven
from custom_autograd.native.library import Library
from custom_autograd.registration.registry import OpRecord, all_records

library = Library()


def attach(record: OpRecord) -> None:
    """Pass the calls of an op to native code once it is loaded, and start loading it if it is not."""
    if library.module is None:
        library.request(_attach_all)
    else:
        _attach(record, library.module)


def _attach_all(native: ModuleType) -> None:
    for record in all_records():
        _attach(record, native)


def start(record: OpRecord) -> bool:
    """Give an op native calls before its first call, if the library is loaded.

    Returns:
        False if it cannot have them, or has them already.
    """
    table = record.direct_calls
    if library.module is None or not isinstance(table, DirectCallTable) or table.native is not None:
        return False
    return _make_native(record, table, library.module)


def _attach(record: OpRecord, native: ModuleType) -> None:
    table = record.direct_calls
    if not isinstance(table, DirectCallTable) or not table.first:
        return
    if table.native is not None:
        table.native.expect()
    else:
        _make_native(record, table, native)


def _make_native(record: OpRecord, table: DirectCallTable, native: ModuleType) -> bool:
    native_calls = _module()
    if not native_calls.NativeCalls.are_learnt or native_calls.why_not(record) is not None:
        return False
    with record.lock:
        if table.native is None:
            calls = native_calls.NativeCalls(record, native)
            table.native = calls
            calls.take_over()
    return True


@functools.cache
def _module() -> ModuleType:
    """Return the module of native calls: where they run, it is loaded once."""
    return importlib.import_module("custom_autograd.native.native_calls")


def watch() -> None:
    """Attach native calls to every direct call that is proven."""
    if attach not in when_proven:
        when_proven.append(attach)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=library.renew)
