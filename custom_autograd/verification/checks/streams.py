"""On CUDA, kernels run on the stream and the device of their inputs, and never wait for the device."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed, first_line, skipped
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import TensorFunction, function_of
from custom_autograd.verification.harness.passes import cotangents_of, forward, repeatable_gradients
from custom_autograd.verification.harness.targets import Target

BUSY = 4096
"""Rows of the matrices whose product keeps a stream busy for some milliseconds."""

WAITS = "the op declares that it may wait for the device, with torch.Tag.cudagraph_unsafe"


class Streams(Check):
    """A side stream whose inputs are not there yet, a device that is not the current one, and no synchronisation."""

    name = "streams"
    code = "D01"
    group = "system"
    needs = ("gradcheck", "reuse")
    most_samples = 1
    purpose = "CUDA kernels run on the stream and device of their inputs, and do not wait for the device"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there is a CUDA device."""
        del target
        return None if torch.cuda.is_available() else "there is no CUDA device"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for each."""
        yield from _on_side_stream(_function_on(target, sample, "cuda"))
        yield skipped(WAITS) if _may_wait(target) else _without_synchronisation(_function_on(target, sample, "cuda"))
        if torch.cuda.device_count() < 2:
            yield skipped("there is one CUDA device, so that none is another than the current one")
            return
        yield _on_other_device(_function_on(target, sample, "cuda:1"))


def _may_wait(target: Target) -> bool:
    """Return True if an op is tagged as one that a CUDA graph cannot capture, which holds for all that wait."""
    return target.overload is not None and torch.Tag.cudagraph_unsafe in target.overload.tags


def _function_on(target: Target, sample: Sample, device: str) -> TensorFunction:
    moved = sample.map(lambda x: x.detach().to(device).requires_grad_(x.requires_grad))
    return function_of(target, moved)


def _on_side_stream(function: TensorFunction) -> Iterator[Finding]:
    """Fill the inputs on a side stream, after a long product there: a kernel that does not wait sees zeros."""
    inputs = function.inputs
    cotangents = cotangents_of(function, inputs)
    expected = _results(function, inputs, cotangents)
    repeatable_gradients(function, inputs, cotangents)
    late = [torch.zeros_like(value).detach() for value in inputs]
    matrix = torch.ones(BUSY, BUSY, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(4):
            matrix = matrix @ matrix * (1 / BUSY)
        for buffer, value in zip(late, inputs, strict=True):
            buffer.copy_(value.detach())
        found = _results(function, late, cotangents)
    torch.cuda.synchronize()
    difference = find_difference(found, expected, names=_names(function))
    yield (
        PASSED
        if difference is None
        else failed(
            f"on a side stream: {difference} on the default stream",
            cause="a kernel is launched on the default stream, not on torch.cuda.current_stream()",
        )
    )


def _without_synchronisation(function: TensorFunction) -> Finding:
    """Run forward and backward, while torch raises if the host would wait for the device."""
    inputs = function.inputs
    cotangents = cotangents_of(function, inputs)
    leaves = tuple(value.detach().clone().requires_grad_() for value in inputs)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = [output for output in function(*leaves) if output.requires_grad]
        torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return failed(f"the op waits for the device: {first_line(error)}", cause=".item(), .cpu() or a size from data")
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return PASSED


def _on_other_device(function: TensorFunction) -> Finding:
    """Compare a call on the second device, while the first is current, with one while the second is."""
    inputs = function.inputs
    cotangents = cotangents_of(function, inputs)
    with torch.cuda.device(1):
        expected = _results(function, inputs, cotangents)
    with torch.cuda.device(0):
        found = _results(function, inputs, cotangents)
    difference = find_difference(found, expected, names=_names(function))
    return (
        PASSED
        if difference is None
        else failed(
            f"on a device that is not the current one: {difference} where it is",
            cause="a kernel is launched on the current device, not on that of its inputs",
        )
    )


def _results(function: TensorFunction, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    called = forward(function, inputs)
    outputs = [output.detach().clone() for output in called.outputs]
    return [*outputs, *called.backward(cotangents)]


def _names(function: TensorFunction) -> list[str]:
    return function.output_names + [f"the gradient of '{name}'" for name in function.names]
