"""Calls leave no tensor behind, not even until the garbage collector comes."""

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.call import begin, call_in_double, run
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target

CALLS = 4


class Leaks(Check):
    """The tensors that live after some calls, with the garbage collector off: as many as before."""

    name = "leaks"
    code = "G14"
    group = "saving"
    is_quick = True
    purpose = "calls leave no tensor behind, with the garbage collector off"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for a forward whose graph is dropped, one for a forward with its backward."""
        try:
            call = call_in_double(target, sample)
        except NothingToCheckError:
            yield _look("a call", lambda: values_of(target, target.call, copy(sample)))
            return
        finding = _look("a forward whose graph is dropped", lambda: begin(target, target.call, call))
        yield finding
        if finding is PASSED:
            end = _End({x.device for x in call.sample.tensors()})
            yield _look("a forward and its backward", lambda: run(target, target.call, call), end)


class _End:
    """The end of the backward passes so far, threads of autograd included.

    On an accelerator a backward runs on a thread of the device, which still holds the node and the tensors of its last
    task when `grad` returns: those of one call were counted as left behind, in one of three runs. The thread takes one
    task after the other, so it has released them once another backward is done, whose tensors are made beforehand.
    """

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._leaves = [torch.zeros((), device=device, requires_grad=True) for device in devices]
        self._grads = [torch.zeros_like(leaf) for leaf in self._leaves]
        for leaf in self._leaves:
            leaf.grad = torch.zeros_like(leaf)  # accumulated in place

    def wait(self) -> None:
        """Wait for every device."""
        for leaf, grad in zip(self._leaves, self._grads, strict=True):
            leaf.backward(grad)


def _look(label: str, step: Callable[[], object], end: _End | None = None) -> Finding:
    """Count twice: a cache that fills once is none, what grows with every call is a leak."""
    end = end or _End()
    with _without_collector():
        step()
        if not _left_behind(step, end):
            return PASSED
        left = _left_behind(step, end)
    if len(left) < CALLS:
        return PASSED
    count, size = len(left) / CALLS, sum(tensor.nbytes for tensor in left) / CALLS
    return failed(
        f"{label} leaves {count:g} tensors behind ({size:g} bytes), expected none, with the garbage collector off",
        cause="a container outside ctx that grows, or a cycle such as an output kept on ctx",
    )


def _left_behind(step: Callable[[], object], end: _End) -> list[Tensor]:
    """Return the tensors that live after some calls and did not before."""
    end.wait()
    before = {id(tensor) for tensor in _living()}
    for _ in range(CALLS):
        step()
    end.wait()
    return [tensor for tensor in _living() if id(tensor) not in before]


def _living() -> list[Tensor]:
    """Return the tensors of the youngest generation: with the collector off, nothing made since is in another."""
    return [value for value in gc.get_objects(generation=0) if issubclass(type(value), Tensor)]


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector within, and count what is alive already as old."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect(0)
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
