"""What an op takes and gives next to its reference: values, other sizes and dtypes, and what a refusal of it means.

Which calls an op takes that its author did not declare is found on the CPU: an accelerator does not refuse an index
beyond a tensor, and fails everything that the process does on it afterwards.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import Watch, fake_mode
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.base import Finding, first_line, skipped
from custom_autograd.verification.harness.dispatching import completing
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.sweeps import (
    elements_of,
    free_sizes,
    is_index,
    pinned_sizes,
    resized,
    sizes_of,
)
from custom_autograd.verification.harness.targets import Function, Target, TargetArgument, call_on
from custom_autograd.verification.report.results import NO_REFERENCE

CRASHES = (LookupError, ArithmeticError, AttributeError, NameError, TypeError, AssertionError, SystemError)
"""What a kernel raises that meets a case it was not written for. A ValueError or a RuntimeError is a decision."""

UNMET = "a kernel that meets a case it was not written for"

TO_SAY = (
    ", which the default kernel computes; let the kernel that refuses say so with when=, and the next kernel runs"
    " (of a layout: with layouts=, and it is copied)"
)


def why_no_reference(target: Target) -> str | None:
    """Return why a target has no reference to be compared with, or None if it has one that is not its only kernel."""
    if target.reference is None:
        return NO_REFERENCE
    if set(target.kernels.values()) <= {target.reference}:
        return "the reference is the only kernel"
    return None


def values_of(target: Target, function: Function, sample: Sample) -> tuple[Tensor, ...]:
    """Return what a function returns, then the inputs the target writes to; only those are copied, the others stay."""
    written = target.written_positions(sample)
    tensors = [copied(x) if position in written else x.detach() for position, x in enumerate(sample.tensors())]
    outputs = call_on(function, sample.with_tensors(tensors))
    return tuple(output.detach() for output in outputs) + tuple(tensors[position] for position in sorted(written))


def accepted_sizes(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample with other sizes that the reference takes; without one, none where integers point.

    A kernel that is given an index beyond its tensor may write anywhere, so only a reference is called first.
    """
    arguments = () if target.reference is None else target.arguments  # it shows which integers may follow a size
    yield from accepted(target, sample, sizes(sample, arguments))
    if is_elementwise(target, sample):
        yield "no dimensions", without_dimensions(sample)


def accepted(target: Target, sample: Sample, variants: Iterable[tuple[str, Sample]]) -> Iterator[tuple[str, Sample]]:
    """Yield those of the variants of a sample that the reference takes; without one, none where integers point."""
    if target.reference is not None or all(x.is_floating_point() or x.is_complex() for x in sample.tensors()):
        found = within_domain(target, sample, variants)
        yield from (row for row in found if takes_as_reference(target, row[1]))


def takes_as_reference(target: Target, sample: Sample) -> bool:
    """Return False if the reference refuses a call, or makes a tensor of more than `MOST_BYTES`; True without one."""
    if target.reference is None:
        return True
    return not _takes_too_much(target.reference, sample) and find_shapes(target, target.reference, sample) is not None


MOST_BYTES = 2**28
"""Of one tensor that a reference makes for another size: a number for each pair can need more than a machine has."""


def _takes_too_much(reference: Function, sample: Sample) -> bool:
    """Return True if a reference would make a tensor of more than `MOST_BYTES`; it runs without data to find out."""
    largest = sorted((tensor.nbytes for tensor in sample.tensors()), reverse=True)[:2]
    if math.prod(largest) <= MOST_BYTES:  # not even one number for each pair of numbers
        return False
    left = iter(range(MOST_LOOKED_AT))

    def look(name: str, made: Sequence[Tensor]) -> None:
        del name
        if any(x.layout == torch.strided and x.untyped_storage().nbytes() > MOST_BYTES for x in made):
            raise MemoryError
        if next(left, None) is None:
            raise TimeoutError

    return isinstance(raised_on_fakes(reference, sample, look), MemoryError)


MOST_LOOKED_AT = 500
"""Operations of a reference that are looked at: a loop makes again what it has made before."""


def raised_on_fakes(
    function: Function, sample: Sample, look: Callable[[str, Sequence[Tensor]], None]
) -> Exception | None:
    """Return what a call without data raises, or what `look` does, which sees each op and the tensors that it makes."""
    watch = Watch(lambda op, args, kwargs, found: look(str(op), Sample(found).tensors()))
    try:
        with torch.no_grad(), fake_mode() as to_fake, watch:
            call_on(function, sample.map(lambda tensor: to_fake(tensor.detach())))
    except Exception as error:  # noqa: BLE001 - what it means depends on who asks
        return error
    return None


def is_elementwise(target: Target, sample: Sample) -> bool:
    """Return True if all tensors, and what the reference returns, have one shape, with dimensions and elements."""
    shapes = {tuple(tensor.shape) for tensor in sample.tensors()}
    is_whole = all(x.numel() and x.dim() and not is_index(x) for x in sample.tensors())
    if target.reference is None or not is_whole or len(shapes) != 1:
        return False
    return shapes == find_shapes(target, target.reference, sample)


def find_shapes(target: Target, reference: Function, sample: Sample) -> set[tuple[int, ...]] | None:
    """Return the shapes of what a function returns; None if it refuses the sample."""
    with torch.no_grad(), contextlib.suppress(Exception):
        return {tuple(tensor.shape) for tensor in values_of(target, reference, sample)}
    return None


def copied(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, gaps included: the layout is part of what is looked at."""
    if tensor.layout != torch.strided or 0 in tensor.stride() or type(tensor) is not Tensor:
        return tensor.detach().clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def to_double(tensor: Tensor) -> Tensor:
    """Return the tensor with its numbers in float64 or complex128; integers and bools stay."""
    return _as_wide_as(tensor, torch.float64)


def to_single(tensor: Tensor) -> Tensor:
    """Return the tensor with its numbers in float32 or complex64; integers and bools stay."""
    return _as_wide_as(tensor, torch.float32)


def _as_wide_as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def refused(error: Exception, target: Target, sample: Sample, label: str) -> Finding:
    """Return a skip for a variant that the op does not take.

    With advice where only a kernel that is not the default refuses it.
    """
    reason = f"{label}: the op refuses it ({first_line(error)})"
    if not only_a_kernel_refuses(target, sample):
        return skipped(reason)
    return skipped(f"{reason}{TO_SAY}", advice=f"{reason}{TO_SAY}")


def only_a_kernel_refuses(target: Target, sample: Sample) -> bool:
    """Return True if the op raises where the default kernel, which is not its only one, gives a result."""
    if "" not in target.kernels or len(target.kernels) < 2:
        return False
    default = completing(target.complete, target.kernels[""])
    return find_shapes(target, target.full, sample) is None and find_shapes(target, default, sample) is not None


def declared_outputs(target: Target) -> int | None:
    """Return how many tensors an op declares to return; None if that depends on the call, or is not known."""
    record = record_of(target)
    if record is None:
        return None
    outputs = [output for output in record.declaration.schema.outputs if output.alias_of is None]
    return len(outputs) if all(output.type == "Tensor" for output in outputs) else None


LARGE = 257
"""Above a block of 256, and a prime: the last block is not full."""

VARIED = ("size", "all sizes", "no dimensions")
"""How the labels of `sizes` begin: an op may refuse those."""

MOST_ELEMENTS = 2**20
"""In one tensor of a variant: a sample of one size in three dimensions would else grow beyond any memory."""


def sizes(sample: Sample, arguments: Sequence[TargetArgument] = ()) -> Iterator[tuple[str, Sample]]:
    """Yield the call with one size at a time changed to 0, 1, one more, and more than a block; then all equal.

    Integers among the arguments stay; where one equals a size, another variant changes it too, and its label says so.
    Sizes that a tensor of integers has or fixes stay, as do the tensors of integers.

    Args:
        sample: what to vary.
        arguments: the arguments in order, for their names.

    Yields:
        What to call the variant, such as "size 8 -> 0", and the variant; none that is larger than `MOST_ELEMENTS`.
    """
    found = sorted(sizes_of(sample) - pinned_sizes(sample))
    changes: list[tuple[str, dict[int, int]]] = []
    for size in found:
        changes += [(f"size {size} -> {other}", {size: other}) for other in (0, 1, size + 1)]
        changes.append((f"size {size} -> {LARGE}", {**cut_sizes(found, size), size: LARGE}))
    if len(found) > 1:
        changes.append(("all sizes 3", dict.fromkeys(found, 3)))
    for label, change in changes:
        if elements_of(sample, change) <= MOST_ELEMENTS:
            yield label, resized(sample, change)
            names = followed(sample, change, arguments)
            if names:
                yield f"{label}, with {names}", resized(sample, change, with_numbers=True)


def followed(sample: Sample, change: Mapping[int, int], arguments: Sequence[TargetArgument]) -> str:
    """Return the integers that follow a size, such as "step=0"; empty if there is none."""
    names = [argument.name for argument in arguments]
    rows = [(names[i] if i < len(names) else f"args[{i}]", value) for i, value in enumerate(sample.args)]
    rows += list(sample.kwargs.items())
    found = [(name, value) for name, value in rows if isinstance(value, int) and not isinstance(value, bool)]
    return ", ".join(f"{name}={change[value]}" for name, value in found if change.get(value, value) != value)


def without_dimensions(sample: Sample) -> Sample:
    """Return the call with the first element of each tensor, as tensors without dimensions."""
    return sample.map(_first)


def _first(tensor: Tensor) -> Tensor:
    return tensor.detach().flatten()[0].clone().requires_grad_(tensor.requires_grad)


def long_sizes(sample: Sample, length: int) -> Iterator[tuple[str, Sample]]:
    """Yield the call with one size at a time made so long, or one longer to stay even; the others become small."""
    found = sorted(sizes_of(sample))
    for size in sorted(free_sizes(sample)):
        long = length + (length + size) % 2
        change = {**cut_sizes(found, size), size: long}
        if elements_of(sample, change) <= MOST_ELEMENTS:
            yield f"size {size} -> {long}", resized(sample, change)


def cut_sizes(found: Sequence[int], kept: int) -> dict[int, int]:
    """Return the other sizes, which ascend, made small and different: odd ones from 3 on, even ones to powers of 2."""
    small: dict[int, int] = {}
    for other in found:
        if other != kept:
            sizes = range(3, other, 2) if other % 2 else (4, 8, 16)
            small[other] = next((size for size in sizes if size < other and size not in small.values()), other)
    return small


COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
"""Without uint8: as an index it is a mask."""


def kinds(sample: Sample) -> Iterator[tuple[torch.dtype, Sample]]:
    """Yield the call with its floating and complex numbers made complex, then made integers, one dtype at a time."""
    given = {x.dtype for x in sample.tensors() if x.is_floating_point() or x.is_complex()}
    for dtype in (*COMPLEX, torch.int64, torch.int32):
        if given and given != {dtype}:
            yield dtype, _with(sample, dtype, given)


def integers(sample: Sample) -> Iterator[tuple[torch.dtype, Sample]]:
    """Yield the call with its integer tensors in each integer dtype that holds their numbers."""
    given = [x for x in sample.tensors() if x.dtype in INTEGERS]
    for dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        is_held = all(x.numel() == 0 or (int(x.min()) >= limits.min and int(x.max()) <= limits.max) for x in given)
        if given and is_held and {x.dtype for x in given} != {dtype}:
            yield dtype, _with(sample, dtype, {x.dtype for x in given})


def _with(sample: Sample, dtype: torch.dtype, given: Collection[torch.dtype]) -> Sample:
    """Return the call with the tensors of some dtypes in another one, and copies of all others."""
    return sample.map(lambda x: _cast(x, dtype) if x.dtype in given else x.detach().clone())


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor.detach().clone()
    found = tensor.detach()
    found = found.real if found.is_complex() and not dtype.is_complex else found
    return found.to(dtype, copy=True)


def within_domain(
    target: Target, sample: Sample, variants: Iterable[tuple[str, Sample]]
) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample that can be called on its device, with their labels."""
    judge = _judge(target, sample)
    for label, variant in variants:
        if judge is None or _takes(judge, variant):
            yield label, variant


def is_within_domain(target: Target, sample: Sample, variant: Sample) -> bool:
    """Return False if the op, or else its reference, raises for a variant on the CPU, where it takes the sample.

    True for samples on the CPU, where a call that is refused does no harm.
    """
    return any(within_domain(target, sample, [("", variant)]))


def _judge(target: Target, sample: Sample) -> Function | None:
    """Return what is asked on the CPU; None if the sample is there, or nothing takes it there."""
    if all(tensor.device.type == "cpu" for tensor in sample.tensors()):
        return None
    functions = (function for function in (target.full, target.reference) if function is not None)
    return next((function for function in functions if _takes(function, sample)), None)


def _takes(function: Function, sample: Sample) -> bool:
    with torch.no_grad(), kept_random_state(), contextlib.suppress(Exception):
        call_on(function, sample.map(lambda tensor: tensor.detach().clone().cpu()))
        return True
    return False
