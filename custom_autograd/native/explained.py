"""Says whether calls of an op run in native code, and why not."""

from __future__ import annotations

from custom_autograd.execution.generated import generated_code_of
from custom_autograd.native.loading import library
from custom_autograd.native.native_calls import why_not
from custom_autograd.registration.registry import OpRecord


def describe_calls(record: OpRecord) -> dict[str, str]:
    """Return how calls of an op run, and how they are recorded: "native", or "Python" and why."""
    reason = why_not(record)
    if reason is not None:
        return {"call": f"Python: {reason}", "node": "Python, since the call is"}
    if library.mode == "0":
        return {"call": f"Python: {library.reason}", "node": f"Python: {library.reason}"}
    recording = generated_code_of(record).recording_facts
    reason = recording.why_no_native_node() if recording.plan.has_reverse else "there is no backward"
    where = "" if library.module is not None else ", once the library is there (custom-autograd native)"
    return {"call": f"native{where}", "node": f"native{where}" if reason is None else f"Python: {reason}"}
