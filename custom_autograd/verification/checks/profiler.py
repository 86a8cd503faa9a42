"""A profile shows an op under its own name, and its backward under one with the op's name."""

import contextlib
import os
from collections.abc import Iterable, Iterator

from torch.profiler import ProfilerActivity, profile

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.dispatch import has_python_dispatch
from custom_autograd.verification.calls.call import begin, call_in_double, cotangents_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on
from custom_autograd.verification.harness.tracing import own_node, why_not_own_op


class Profiler(Check):
    """The names that torch.profiler records of one forward and one backward."""

    name = "profiler"
    code = "Y02"
    group = "system"
    most_samples = 1
    purpose = "a profile shows the op under its own name, and its backward under a name that tells whose it is"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless it is a registered op; nothing else has a name to show."""
        is_own = record_of(target) is not None  # its call goes past Python dispatch while there is a profiler
        if not is_own and target.overload is not None and has_python_dispatch(target.overload):
            return "PyObject dispatch of PyTorch, which is on for this op, hides it from profilers"
        return why_not_own_op(target)

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for the call, one for the backward."""
        name = target.name.rsplit(".", 1)[0] if "." in target.name.split("::")[-1] else target.name
        values = copy(sample)
        with _recording() as recorded:
            call_on(target.call, values)
        if name in recorded:
            yield PASSED
        else:
            yield failed(
                f"a profile of a call does not show '{name}', only {_shown(recorded)}",
                cause="the call goes round the dispatcher while a profiler is on",
            )
        yield _backward(target, sample, name)


def _backward(target: Target, sample: Sample, name: str) -> Finding:
    call = call_in_double(target, sample)
    begun = begin(target, target.call, call)
    node = own_node(begun.recorded())
    if node is None:
        raise NothingToCheckError("its backward is made of several nodes, or of one of torch's own")
    node_name = node.name()
    with _recording() as recorded:
        begun.backward(cotangents_of(call, begun))
    if not any(node_name in row for row in recorded):
        return failed(f"a profile of the backward does not show '{node_name}', only {_shown(recorded)}")
    if record_of(target) is not None and name.split("::")[-1] not in node_name:
        return failed(f"a profile shows the backward of '{name}' as '{node_name}', which does not tell whose it is")
    return PASSED


def _shown(recorded: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in dict.fromkeys(recorded)) or "nothing"


@contextlib.contextmanager
def _recording() -> Iterator[list[str]]:
    """Yield the list of the names of what runs within; it is filled at the end."""
    names: list[str] = []
    profiler = profile(activities=[ProfilerActivity.CPU], acc_events=False)
    with _without_native_log():
        profiler.start()
    try:
        yield names
    finally:
        with _without_native_log():
            profiler.stop()
    names += [str(event.name) for event in profiler.events() or ()]


@contextlib.contextmanager
def _without_native_log() -> Iterator[None]:
    """Silence what Kineto writes to the error stream, below Python's, when it starts and stops."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
