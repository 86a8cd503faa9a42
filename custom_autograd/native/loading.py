"""Native calls for the ops of this process: asked for at the first call of any, attached op by op, and described."""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

from custom_autograd.execution.generated import generated_code_of
from custom_autograd.execution.proofs import Prover  # which warns of a torch that was not tested
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
    if library.module is None or record.overload is None or record.road.native is not None:
        return False
    return _make_native(record, library.module)


def _attach(record: OpRecord, native: ModuleType) -> None:
    if record.road.native is None and record.road.at_keys:
        _make_native(record, native)


def _make_native(record: OpRecord, native: ModuleType) -> bool:
    native_calls = _module()
    if not native_calls.NativeCalls.are_learnt or native_calls.why_not(record) is not None:
        return False
    with record.lock:
        if record.road.native is None:
            calls = record.road.native = native_calls.NativeCalls(record, native, Prover(record))
            calls.take_over()
    return True


@functools.cache
def _module() -> ModuleType:
    """Return the module of native calls: where they run, it is loaded once."""
    return importlib.import_module("custom_autograd.native.native_calls")


def watch() -> None:
    """Attach native calls to every op that is called."""
    if attach not in OpRecord.when_called:
        OpRecord.when_called += (attach,)


def describe_calls(record: OpRecord) -> dict[str, str]:
    """Return how calls of an op run, and how they are recorded: "native", or "Python" and why."""
    reason: str | None = _module().why_not(record)
    if reason is not None:
        return {"call": f"Python: {reason}", "node": "Python, since the call is"}
    if library.mode == "0":
        return {"call": f"Python: {library.reason}", "node": f"Python: {library.reason}"}
    recording = generated_code_of(record)
    reason = recording.why_no_native_node() if recording.plan.has_reverse else "there is no backward"
    where = "" if library.module is not None else ", once the library is there (custom-autograd native)"
    return {"call": f"native{where}", "node": f"native{where}" if reason is None else f"Python: {reason}"}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=library.renew)
