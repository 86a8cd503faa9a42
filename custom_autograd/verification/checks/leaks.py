"""Calls leave no tensor behind, not even until the garbage collector comes."""

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from custom_autograd.core.samples import Sample
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.differentiable import TensorFunction, function_of
from custom_autograd.verification.harness.passes import cotangents_of, forward
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on

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
            function = function_of(target, sample)
            cotangents = cotangents_of(function, function.inputs)
        except NothingToCheckError:
            yield _look("a call", lambda: _call(target, sample))
            return
        finding = _look("a forward whose graph is dropped", lambda: _drop(function))
        yield finding
        if finding is PASSED:
            yield _look("a forward and its backward", lambda: _differentiate(function, cotangents))


def _call(target: Target, sample: Sample) -> None:
    with torch.no_grad():
        call_on(target.call, copy(sample))


def _drop(function: TensorFunction) -> None:
    forward(function, function.inputs)


def _differentiate(function: TensorFunction, cotangents: tuple[Tensor, ...]) -> None:
    forward(function, function.inputs).backward(cotangents)


def _look(label: str, step: Callable[[], None]) -> Finding:
    """Count twice: a cache that fills once is none, what grows with every call is a leak."""
    with _without_collector():
        step()
        if not _left_behind(step):
            return PASSED
        left = _left_behind(step)
    if len(left) < CALLS:
        return PASSED
    count, size = len(left) / CALLS, sum(tensor.nbytes for tensor in left) / CALLS
    return failed(
        f"{label} leaves {count:g} tensors behind ({size:g} bytes), expected none, with the garbage collector off",
        cause="a container outside ctx that grows, or a cycle such as an output kept on ctx",
    )


def _left_behind(step: Callable[[], None]) -> list[Tensor]:
    """Return the tensors that live after some calls and did not before."""
    before = {id(tensor) for tensor in _living()}
    for _ in range(CALLS):
        step()
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
