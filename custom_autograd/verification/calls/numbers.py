"""Other numbers in a tensor, in integers that a reference only computes with, and in two tensors together.

No sign appears that a tensor does not have. Integers are made so large that their products need more than 32 bits,
where nothing of their size is allocated. Numbers of one tensor are put into another, where a comparison, a search or a
rounding may jump: a search that goes one element too far there reads nan, which is what lies around the tensors. All
floating tensors are cast to another dtype.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample, range_of
from custom_autograd.verification.calls.call_arguments import Apply, may_be_dimension, value_of, with_value
from custom_autograd.verification.calls.layouts import offset
from custom_autograd.verification.harness.agreement import raised_on_fakes, values_of
from custom_autograd.verification.harness.dispatching import device_type_of
from custom_autograd.verification.harness.sweeps import ascends, copy, is_index, is_ordered
from custom_autograd.verification.harness.targets import Target


def element(value: float) -> Callable[[Tensor], Tensor | None]:
    """Return what makes the element in the middle this number."""

    def change(tensor: Tensor) -> Tensor | None:
        if not tensor.numel() or (tensor.is_complex() and not math.isfinite(value)):
            return None
        found = tensor.clone(memory_format=torch.contiguous_format)
        found.view(-1)[tensor.numel() // 2] = value
        return found

    return change


def last_row(value: float) -> Callable[[Tensor], Tensor | None]:
    """Return what makes the last row this number."""

    def change(tensor: Tensor) -> Tensor | None:
        if tensor.dim() < 2 or not tensor.numel() or (tensor.is_complex() and not math.isfinite(value)):
            return None
        found = tensor.clone(memory_format=torch.contiguous_format)
        found.view(-1, tensor.shape[-1])[-1] = value
        return found

    return change


def both_zeros(tensor: Tensor) -> Tensor | None:
    """Return the tensor with 0, -0 and 0 in the middle: they are equal."""
    if tensor.is_complex() or tensor.numel() < 3:
        return None
    found = tensor.clone(memory_format=torch.contiguous_format)
    middle = tensor.numel() // 2
    found.view(-1)[middle - 1 : middle + 2] = torch.tensor([0.0, -0.0, 0.0])
    return found


def far_off(tensor: Tensor) -> Tensor | None:
    """Return numbers next to 1000, whose squares and exponentials cancel; None where all are negative."""
    return tensor + 1000 if tensor.dtype.itemsize > 2 and bool((tensor.real > 0).any()) else None


def constant_rows(tensor: Tensor) -> Tensor | None:
    """Return the first number of each row for the whole row."""
    return tensor[..., :1].expand_as(tensor).contiguous() if tensor.dim() and tensor.numel() else None


def large(tensor: Tensor) -> Tensor:
    """Return numbers a thousand times as large; in half precision, as large as squares of them may be."""
    return tensor * (300 if tensor.dtype in (torch.float16, torch.bfloat16) else 1000)


def large_negative(tensor: Tensor) -> Tensor | None:
    """Return numbers that are all negative, and a thousand times as large; None where none is negative."""
    return -large(tensor).abs() if not tensor.is_complex() and bool((tensor < 0).any()) else None


def negated(tensor: Tensor) -> Tensor | None:
    """Return the numbers with the other sign; None where they have but one."""
    has_both = not tensor.is_complex() and bool((tensor < 0).any()) and bool((tensor > 0).any())
    return -tensor if has_both else None


def shuffled(tensor: Tensor) -> Tensor:
    """Return the numbers in another order."""
    order = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(tensor.numel()), device="cpu")
    return tensor.reshape(-1)[order.to(tensor.device)].reshape(tensor.shape)


SMALL = ("a thousandth as large", "a millionth as large")

NEGATIVE = "1000 times as large, and all negative"
"""Drawn by `explore` alone, which does not compare hidden outputs: derivatives among them may be but rounding there."""

FAR_OFF = "with 1000 added"

OTHER_SIGN = "with the other sign"

TWENTY = "20 times as large"

LARGE = ("1000 times as large", "with one that is 1000", FAR_OFF, NEGATIVE)

NOT_FINITE = ("with a nan", "with an inf", "with a -inf", "with a row of -inf")

BOTH_ZEROS = "with 0 beside -0"

AT_ENDS = "with both ends of its range"

TIES = ("zero", "rounded, with ties")

ZEROS = ("' zero", "numbers zero", "with a row of zeros")

VALUE_CHANGES: tuple[tuple[str, Callable[[Tensor], Tensor | None], bool], ...] = (
    (NEGATIVE, large_negative, False),  # first: no other check looks at it
    (OTHER_SIGN, negated, False),  # of one tensor next to others: a branch by the sign of a product
    (TWENTY, lambda x: x * 20, True),
    ("1000 times as large", large, True),
    (FAR_OFF, far_off, False),
    ("a thousandth as large", lambda x: x * 1e-3, True),
    ("a millionth as large", lambda x: x * 1e-6, True),
    ("zero", torch.zeros_like, True),
    ("rounded, with ties", lambda x: None if x.is_complex() else x.round(), True),
    ("constant in each row", constant_rows, False),
    ("with a row of zeros", last_row(0.0), False),
    ("with one zero", element(0.0), False),
    (BOTH_ZEROS, both_zeros, False),
    ("in another order", shuffled, False),
    ("with one that is 1000", element(1000.0), False),
    ("with a nan", element(float("nan")), False),
    ("with an inf", element(float("inf")), False),
    ("with a -inf", element(float("-inf")), False),
    ("with a row of -inf", last_row(float("-inf")), False),
)
"""Text, change, and whether it is also made to all tensors together. No sign appears that a tensor does not have."""

OF_VALUES = (*NOT_FINITE, FAR_OFF, BOTH_ZEROS, AT_ENDS)
"""Changes whose gradients are not compared: they may be but rounding, or at a kink."""

OF_ALL = tuple(text for text, _, is_whole in VALUE_CHANGES if is_whole)


def equal_neighbors(tensor: Tensor) -> Tensor | None:
    """Return offsets with an empty segment in the middle, or keys of which one comes twice."""
    if tensor.numel() < 3:
        return None
    found = tensor.clone(memory_format=torch.contiguous_format)
    flat = found.view(-1)
    flat[tensor.numel() // 2] = flat[tensor.numel() // 2 - 1]
    return found


def all_first(tensor: Tensor) -> Tensor:
    """Return the first number for each."""
    return tensor.reshape(-1)[:1].expand(tensor.numel()).reshape(tensor.shape).contiguous()


MASKS: tuple[tuple[str, Callable[[Tensor], Tensor | None]], ...] = (
    ("all True", torch.ones_like),
    ("all False", torch.zeros_like),
    ("with a row of False", last_row(0.0)),
    ("inverted", torch.logical_not),
)


FACTOR = 2**17 - 1
"""A product of two exceeds 32 bits; of three, it fits into 64."""

WIDE = (torch.int32, torch.int64)


def large_integers(target: Target, sample: Sample) -> Iterator[tuple[str, Callable[[Sample], Sample | None]]]:
    """Yield the call with its wide tensors, and then its other integers too, made large; then with the largest."""
    if any(x.dtype in WIDE and is_index(x) for x in sample.tensors()):
        text = f"integers {FACTOR} times as large"
        yield f"{text}, in tensors", partial(_scaled, target, with_numbers=False)
        yield text, partial(_scaled, target, with_numbers=True)
        yield "negative integers, in tensors", partial(_negative, target)
    if any(map(_is_narrow, sample.tensors())):
        yield "each integer the largest of its 8 or 16 bits", partial(_filled, target)


def _scaled(target: Target, sample: Sample, *, with_numbers: bool) -> Sample | None:
    wide = [x for x in sample.tensors() if x.dtype in WIDE and is_index(x) and x.numel()]
    if any(int(x.abs().max()) > min(FACTOR, torch.iinfo(x.dtype).max // FACTOR) or _are_offsets(x) for x in wide):
        return None
    found = sample.map(lambda x: x * FACTOR if x.dtype in WIDE and is_index(x) else x)
    for row in target.arguments if with_numbers else ():
        if row.name not in sample.kept:
            found = with_value(target, found, row.name, _larger(value_of(target, found, row.name)))
    return found if _are_numbers(target, found) else None


def _are_offsets(tensor: Tensor) -> bool:
    """Return True if integers ascend from 0: beyond the last one there is nothing."""
    return tensor.dim() == 1 and tensor.numel() > 2 and int(tensor[0]) == 0 and ascends(tensor)


def _negative(target: Target, sample: Sample) -> Sample | None:
    """Return the call with -1 - x for each integer x, if it may also be large: then none is a position."""
    if _scaled(target, sample, with_numbers=False) is None:
        return None
    found = sample.map(lambda x: -1 - x if x.dtype in WIDE and is_index(x) else x)
    return found if _are_numbers(target, found) else None


NARROW = (torch.int8, torch.uint8, torch.int16)
"""Integers of which a sum of products may need more bits than it is made in."""

CODES = 15
"""Such integers that are no larger may be flags, or codes of 4 bits: only the author knows that there are no others."""


def _is_narrow(tensor: Tensor) -> bool:
    return tensor.dtype in NARROW and is_index(tensor) and bool((tensor > CODES).any())


def _filled(target: Target, sample: Sample) -> Sample | None:
    found = sample.map(lambda x: torch.full_like(x, torch.iinfo(x.dtype).max) if _is_narrow(x) else x)
    return found if _are_numbers(target, found) else None


def _larger(value: object) -> object:
    if type(value) is int:
        return value if may_be_dimension(value) else value * FACTOR
    return [_larger(item) for item in value] if isinstance(value, list) and not Sample(value).tensors() else value


def _are_numbers(target: Target, sample: Sample) -> bool:
    """Return True if the reference only computes with the integers: no size and no branch depends on them.

    They may be positions that the reference brings within bounds, as a hash does. Other integers are never made larger:
    with them a kernel would read memory that is not its own.
    """
    reference = target.visible_reference
    assert reference is not None
    if raised_on_fakes(reference, sample, partial(_refuse, names=POINTING)) is None:
        return True
    if device_type_of(sample) != "cpu" or raised_on_fakes(reference, sample, partial(_refuse, names=UNBOUNDED)):
        return False  # elsewhere nothing looks at bounds
    with contextlib.suppress(Exception):
        values_of(target, reference, copy(sample))
        return True
    return False


MOST_MADE = 2**22
"""Elements of a tensor that the reference makes."""


POINTING = ("index", "gather", "segment", "scatter", "embedding", "take", "_local_scalar_dense")
"""Parts of the names of what uses integers as positions, or reads them."""


UNBOUNDED = ("segment", "embedding", "_local_scalar_dense")
"""The same of what does not look at bounds on the CPU, at all of them or in all of its forms."""


def _refuse(name: str, made: Sequence[Tensor], names: Sequence[str]) -> None:
    """Raise where integers may be positions, and where a tensor of more than `MOST_MADE` elements is made."""
    if any(part in name for part in names):
        raise IndexError
    if any(x.numel() > MOST_MADE for x in made):
        raise MemoryError


def in_order(change: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], Tensor | None]:
    """Return a change that does not fit where it leaves knots or edges that do not ascend, or makes two equal."""

    def changed(tensor: Tensor) -> Tensor | None:
        found = change(tensor)
        return found if found is not None and is_ordered(found) and _are_equal(found) <= _are_equal(tensor) else None

    return changed


def _are_equal(tensor: Tensor) -> bool:
    """Return True if two neighbors are equal."""
    return bool((tensor[1:] == tensor[:-1]).any())


MOST_PAIRS = 12
"""Of the tensors of one sample."""


def coincidences(sample: Sample, names: Sequence[str]) -> Iterator[tuple[str, Apply]]:
    """Yield the call with some numbers of one tensor copied to another, then with halves of a number in it."""
    tensors = sample.tensors()
    reals = [i for i, x in enumerate(tensors) if x.is_floating_point() and x.layout == torch.strided and x.numel()]
    for one, other in itertools.islice(itertools.permutations(reals, 2), MOST_PAIRS):
        if is_ordered(tensors[one]):
            continue
        change = partial(_put, one=one, other=other, bounds=range_of(tensors[one]))
        yield f"'{names[one]}' with numbers of '{names[other]}'", partial(change, numbers=_ends)
        yield f"'{names[one]}' with halves of '{names[other]}', a power of 2", partial(change, numbers=_halves)


def _ends(tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the tensor, and its first, middle and last numbers."""
    flat = tensor.reshape(-1)
    return tensor, flat[[0, flat.numel() // 2, -1]]


def _halves(tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return powers of 2, all near the first number, whose reciprocals are exact, and odd halves of that power."""
    if not tensor.numel():
        return None
    first = tensor.reshape(-1)[:1]
    power = torch.exp2(first.abs().clamp(min=2.0**-8).log2().round())
    signed = power * torch.where(tensor < 0, -1, 1).to(tensor.dtype)
    return signed, power * torch.tensor([0.5, 1.5, 2.5], dtype=tensor.dtype, device=tensor.device)


def _put(
    sample: Sample,
    one: int,
    other: int,
    bounds: tuple[float, float] | None,
    numbers: Callable[[Tensor], tuple[Tensor, Tensor] | None],
) -> Sample | None:
    tensors = [x.detach() for x in sample.tensors()]
    if not tensors[one].numel() or not tensors[other].numel() or tensors[one].dtype != tensors[other].dtype:
        return None
    pair = numbers(tensors[other])
    if pair is None:
        return None
    tensors[other], chosen = pair
    if bounds is not None and not bool(((chosen >= bounds[0]) & (chosen <= bounds[1])).all()):
        return None
    tensors[one] = tensors[one].clone(memory_format=torch.contiguous_format)
    flat = tensors[one].view(-1)
    places = [0, flat.numel() // 2, flat.numel() - 1]
    flat[places] = chosen.to(flat.device)
    is_real = [x.is_floating_point() and x.layout == torch.strided for x in tensors]
    return sample.with_tensors([offset(x) if real else x for x, real in zip(tensors, is_real, strict=True)])


FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
BESIDE = (torch.bfloat16, torch.float64)
"""A narrower and a wider dtype than float32: in mixed precision one tensor has it beside others."""


def casts(sample: Sample) -> Iterator[tuple[torch.dtype, str, Apply]]:
    """Yield the dtypes that not all floating tensors have, in words too, and what casts them all."""
    given = {x.dtype for x in sample.tensors() if x.is_floating_point()}
    for dtype in FLOATING if given else ():
        if given != {dtype}:
            yield dtype, f"in {str(dtype).removeprefix('torch.')}", partial(_all_cast, dtype=dtype)


def _all_cast(sample: Sample, dtype: torch.dtype) -> Sample | None:
    wide = dtype.to_complex()
    if dtype.itemsize < 4 and any(x.is_complex() for x in sample.tensors()):
        return None
    return sample.map(lambda x: x.detach().to(dtype if x.is_floating_point() else wide if x.is_complex() else x.dtype))
