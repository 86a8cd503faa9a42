"""A kernel keeps to its memory, and on CUDA to the stream and the device of its inputs, without waiting for the device.

What it is given and what it makes lie between guards, which it leaves alone.
"""

import contextlib
import ctypes
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.dispatch import DispatchMode
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.calls.call import (
    Call,
    begin,
    call_as_given,
    call_in_double,
    cotangents_of,
    find_change,
    run,
    run_repeatably,
)
from custom_autograd.verification.calls.changes import SCALARS, SIZES, VALUES, changes_of
from custom_autograd.verification.calls.numbers import element
from custom_autograd.verification.harness.agreement import is_within_domain, values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed, first_line, skipped
from custom_autograd.verification.harness.comparison import find_difference, judged
from custom_autograd.verification.harness.dispatching import device_of_kernel, label_of_kernel
from custom_autograd.verification.harness.interpreted import find_interpreter, touched_addresses
from custom_autograd.verification.harness.records import output_names, unless_replaced
from custom_autograd.verification.harness.sweeps import copy, has_arithmetic, is_index
from custom_autograd.verification.harness.targets import Function, Target, call_on

GUARD = 64  # elements on each side
MARKS = (3, -5, math.nan)
"""The numbers that fill the guards, in a run each: a result that changes was read from there.

A maximum ignores nan, and a weight of zero ignores a number. Integers have the first two.
"""


@dataclass(frozen=True)
class Bounds(Check):
    """Each kernel several times, with guards of different content around every tensor.

    Attributes:
        is_first: whether other calls than the sample are made too.
    """

    is_first: bool = True

    name = "bounds"
    code = "F12"
    group = "values"
    is_quick = True
    purpose = "no kernel writes or reads outside its memory"

    def further(self) -> Check:
        """Return the check of samples alone."""
        return replace(self, is_first=False)

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless the kernels are known, or the function is one itself."""
        is_opaque = target.overload is not None and not target.kernels
        return "its kernels are not known: a dispatcher's op shows nothing of its memory" if is_opaque else None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per kernel that runs where the sample lives; none of a fallback that replaces one."""
        devices = {"", *(tensor.device.type for tensor in sample.tensors())}
        kernels = {key: row for key, row in target.kernels.items() if device_of_kernel(key) in devices}
        for key, kernel in kernels.items() or [("", target.full)]:
            name = label_of_kernel(key) if kernels else "it"
            try:
                finding = _check(kernel, target, sample, name)
            except KernelUnavailable as error:
                finding = skipped(first_line(error))
            if finding is PASSED and self.is_first:
                finding = next(_find_outside(kernel, target, sample, name), PASSED)
            yield unless_replaced(finding, target, key)


def _find_outside(kernel: Function, target: Target, sample: Sample, name: str) -> Iterator[Finding]:
    """Yield the failures of other calls that the reference takes, those left out that the kernel refuses."""
    if target.reference is None:  # which says what an op takes: what it refuses, a kernel may refuse by a crash
        return
    begun = time.process_time()
    for text, changed, is_taken in _others(target, sample):
        if time.process_time() - begun > LONGEST:
            return
        if not is_taken and find_interpreter(lambda: call_on(kernel, copy(sample))) is not None:
            continue
        with contextlib.suppress(Exception):
            if is_taken:
                values_of(target, target.reference, copy(changed))
            finding = _check(kernel, target, changed, f"{text}: {name}")
            if finding.status == "failed":
                yield finding if is_taken else replace(finding, cause=NOWHERE)


def _others(target: Target, sample: Sample) -> Iterator[tuple[str, Sample, bool]]:
    """Yield other calls, and whether the reference must take them: it need not take indices that point nowhere.

    Those a kernel has to refuse, but not on a device or in an interpreter, where it has no way to raise.
    """
    tensors = sample.tensors()
    for position, (leaf, tensor) in enumerate(zip(sample.leaves(), tensors, strict=True)):
        is_wide = tensor.dtype in (torch.int32, torch.int64) and tensor.device.type == "cpu" and is_index(tensor)
        other = element(-1)(tensor) if is_wide and not bool((tensor < 0).any()) else None
        if other is not None:
            given = sample.with_tensors([*tensors[:position], other, *tensors[position + 1 :]])
            yield f"'{target.name_of(leaf)}' with a -1 in it", given, False
    call = call_as_given(sample.map(torch.Tensor.detach))
    for change in changes_of(target, sample, frozenset()):
        is_meant = change.stage == SCALARS or (change.stage in (SIZES, VALUES) and change.text.endswith(OTHERS))
        changed = change.apply(call) if is_meant else None
        if changed is not None and is_within_domain(target, sample, changed.sample):
            yield change.text, changed.sample, True


LONGEST = 0.1
"""CPU seconds for other calls of a kernel."""
OTHERS = ("20 times as large", "-> 3", "-> 17")
"""Numbers and sizes that have a border or a tail where the sample may have none."""


def _check(kernel: Function, target: Target, sample: Sample, name: str) -> Finding:
    results, difference = list[Sequence[Tensor]](), None
    call = sample if kernel is target.full else target.complete(sample)
    state = RandomState.current()
    for mark in (*MARKS, MARKS[-1]):  # the last one for kernels that differ by themselves
        state.restore()
        inputs = [_guarded(tensor.detach(), mark) for tensor in sample.tensors()]
        with torch.no_grad(), _Guarding(mark) as made, touched_addresses() as touched:
            outputs = call_on(kernel, call.with_tensors([row.tensor for row in inputs]))
        rows = [(row, f"'{target.name_of(leaf)}'") for leaf, row in zip(sample.leaves(), inputs, strict=True)]
        rows += [(row, _what(row, target, outputs)) for row in made.rows]
        text = _find_access(rows, touched)
        if text is not None:
            return failed(f"{name} {text}", cause=OUTSIDE)
        results.append([output.clone() for output in outputs])
        if difference is None and len(results) > 1:
            difference = find_difference(results[-1], results[0], names=output_names(target, len(results[0])))
            if difference is None and len(results) == len(MARKS):
                return PASSED
    if find_difference(results[-1], results[-2]) is not None:
        return skipped(f"two equal calls of {name} differ")
    return failed(f"{name} reads outside its memory: with other numbers there, {difference}", cause=OUTSIDE)


def _find_access(rows: "Sequence[tuple[_Guarded, str]]", touched: Sequence[Any]) -> str | None:
    """Return what is written, or else read, outside of tensors with these names: "writes 1 element past the end of x".

    Reads show by their addresses, which interpreted kernels give; others by their results (Any: arrays of NumPy).
    """
    for row, what in rows:
        if (text := row.find_write()) is not None:
            return f"writes {text} {what}"
    for row, what in rows if touched else ():
        if (text := row.find_touch(touched)) is not None:
            return f"reads {text} {what}"
    return None


class _Guarded:
    """A tensor in the middle of larger memory."""

    def __init__(self, memory: Tensor, tensor: Tensor, mark: float) -> None:
        self.memory, self.tensor, self.mark = memory, tensor, mark

    def find_write(self) -> str | None:
        """Return where a guard was written to: "1 element past the end of", or None."""
        kept = self.memory.isnan() if math.isnan(self.mark) else self.memory == self.mark
        before = (~kept[:GUARD]).nonzero().flatten()
        after = (~kept[-GUARD:]).nonzero().flatten()
        if len(after):
            return f"{_elements(int(after[-1]) + 1)} past the end of"
        return f"{_elements(GUARD - int(before[0]))} before the beginning of" if len(before) else None

    def find_touch(self, addresses: Sequence[Any]) -> str | None:  # Any: arrays of NumPy
        """Return where a guard is among the addresses that were read: as above."""
        size, start = self.memory.element_size(), self.memory.data_ptr()
        end = start + self.memory.nbytes
        found = [x[(x >= start) & (x < end)] for x in addresses]
        positions = [(int(x) - start) // size for row in found if row.size for x in (row.min(), row.max())]
        inner = range(GUARD, len(self.memory) - GUARD)
        after = [position for position in positions if position >= inner.stop]
        before = [position for position in positions if position < inner.start]
        if after:
            return f"{_elements(max(after) + 1 - inner.stop)} past the end of"
        return f"{_elements(GUARD - min(before))} before the beginning of" if before else None


def _guarded(tensor: Tensor, mark: float, *, is_new: bool = False) -> _Guarded:
    """Return a copy with the same strides between two guards."""
    if math.isnan(mark) and not has_arithmetic(tensor):
        mark = MARKS[0]
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.dtype == torch.bool or tensor.numel() == 0:
        return _Guarded(torch.full((2 * GUARD,), mark, device=tensor.device), tensor.clone(), mark)
    dense = torch.empty_like(tensor)
    extent = sum((size - 1) * stride for size, stride in zip(dense.shape, dense.stride(), strict=True)) + 1
    memory = torch.full((extent + 2 * GUARD,), mark, dtype=tensor.dtype, device=tensor.device)
    is_own = is_new and memory.device.type == "cpu"
    middle = _own_storage(memory, extent) if is_own else memory[GUARD : GUARD + extent]
    inner = middle.as_strided(dense.shape, dense.stride())
    return _Guarded(memory, inner.copy_(tensor), mark)


def _own_storage(memory: Tensor, extent: int) -> Tensor:
    """Return what is between the guards with a storage offset of 0, which a kernel may rely on.

    Only memory of the CPU can be seen so; elsewhere the tensor is a view.
    """
    buffer: Any = (ctypes.c_char * memory.nbytes).from_address(memory.data_ptr())  # Any: for the attribute
    buffer.memory = memory  # kept alive by the tensor, which holds the buffer
    return torch.frombuffer(buffer, dtype=memory.dtype, count=extent, offset=GUARD * memory.element_size())


class _Guarding(DispatchMode):
    """Gives every new tensor guards."""

    def __init__(self, mark: float) -> None:
        super().__init__()
        self.mark = mark
        self.rows: list[_Guarded] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,  # Any: torch's own signature
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if str(func).split(".")[1] not in FACTORIES or not isinstance(result, Tensor) or result.device.type == "meta":
            return result
        if str(func).split(".")[1] in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"):
            result.zero_()
        row = _guarded(result, self.mark, is_new=True)
        self.rows.append(row)
        return row.tensor


def _what(row: _Guarded, target: Target, outputs: Sequence[Tensor]) -> str:
    for name, output in zip(output_names(target, len(outputs)), outputs, strict=True):
        if output.untyped_storage().data_ptr() == row.tensor.untyped_storage().data_ptr():
            return name
    return f"a tensor of shape {tuple(row.tensor.shape)} that it makes"


def _elements(number: int) -> str:
    return f"{number} element{'s' if number > 1 else ''}"


NOWHERE = "an index is not checked: raise for one below 0, and declare that with Sample(...).raises"
OUTSIDE = "an index is off by one, or a tail is not masked"

FACTORIES = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "full", "full_like", "clone",
})  # fmt: skip


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
        call = _call_on(target, sample, "cuda")
        yield _on_side_stream(target, call)
        may_wait = target.overload is not None and torch.Tag.cudagraph_unsafe in target.overload.tags
        yield skipped(WAITS) if may_wait else _without_synchronisation(target, call)
        if torch.cuda.device_count() < 2:
            yield skipped("there is one CUDA device, so that none is another than the current one")
            return
        yield _on_other_device(target, _call_on(target, sample, "cuda:1"))


def _call_on(target: Target, sample: Sample, device: str) -> Call:
    return call_in_double(target, sample.map(lambda x: x.detach().to(device).requires_grad_(x.requires_grad)))


def _on_side_stream(target: Target, call: Call) -> Finding:
    """Fill the inputs on a side stream, after a long product there: a kernel that does not wait sees zeros."""
    expected = run_repeatably(target, call)
    cotangents = cotangents_of(call, begin(target, target.call, call))  # made here: they come from the host
    tensors = call.sample.tensors()
    buffers = [torch.zeros_like(x) if i in call.needs else x for i, x in enumerate(tensors)]
    late = replace(call, sample=call.sample.with_tensors(buffers))
    matrix = torch.ones(BUSY, BUSY, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(4):
            matrix = matrix @ matrix * (1 / BUSY)
        for position in call.needs:
            buffers[position].copy_(tensors[position])
        begun = begin(target, target.call, late)
        found = {**begun.detached(), **begun.backward(cotangents)}
    torch.cuda.synchronize()
    cause = "a kernel is launched on the default stream, not on torch.cuda.current_stream()"
    return judged(find_change(found, expected), "on a side stream: {} on the default stream", cause=cause)


def _without_synchronisation(target: Target, call: Call) -> Finding:
    """Run forward and backward, while torch raises if the host would wait for the device."""
    cotangents = cotangents_of(call, begin(target, target.call, call))
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        begin(target, target.call, replace(call, state=None)).backward(cotangents)
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return failed(f"the op waits for the device: {first_line(error)}", cause=".item(), .cpu() or a size from data")
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return PASSED


def _on_other_device(target: Target, call: Call) -> Finding:
    """Compare a call on the second device, while the first is current, with one while the second is."""
    with torch.cuda.device(1):
        expected = run(target, target.call, call)
    with torch.cuda.device(0):
        found = run(target, target.call, call)
    cause = "a kernel is launched on the current device, not on that of its inputs"
    text = "on a device that is not the current one: {} where it is"
    return judged(find_change(found, expected), text, cause=cause)
