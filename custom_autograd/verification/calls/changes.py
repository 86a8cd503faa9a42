"""The axes along which calls are drawn: sizes, numbers, scalars, layouts, needs, cotangents.

for change in changes_of(target, sample, needs):     in the order in which they are tried alone
    call = change.apply(call)
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample, is_drawn, range_of
from custom_autograd.verification.calls import call_arguments, layouts, sizes
from custom_autograd.verification.calls.call import Call, Cotangent
from custom_autograd.verification.calls.call_arguments import declared_arguments, value_of, with_value
from custom_autograd.verification.calls.cotangents import COTANGENT_CHANGES
from custom_autograd.verification.calls.numbers import (
    AT_ENDS,
    BESIDE,
    BOTH_ZEROS,
    LARGE,
    MASKS,
    NOT_FINITE,
    OF_VALUES,
    VALUE_CHANGES,
    all_first,
    casts,
    coincidences,
    element,
    equal_neighbors,
    in_order,
    large_integers,
    shuffled,
)
from custom_autograd.verification.calls.ranges import at_ends, outside, within_range
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.sweeps import (
    ascends,
    has_arithmetic,
    is_index,
    is_ordered,
    pinned_sizes,
    sizes_of,
    subsets,
)
from custom_autograd.verification.harness.targets import Target

SIZES, VALUES, SCALARS, SHARED, LAYOUTS, NEEDS, COTANGENTS = range(7)
"""The order in which changes of a case are made, whatever order they were drawn in."""

CHECKS_OF_STAGES = ("sizes", "reference", "reference", "shared_inputs", "layouts", "needs", "cotangents")


OUT_OF_RANGE = "range"
"""The key of numbers that no sample has: the op may refuse them, and is right where the reference gives a number."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing about a call that is not as in the sample.

    Attributes:
        key: what is changed; of two changes of one key, a case has one.
        text: what messages say.
        stage: when it is made.
        apply: makes it; None where it does not fit the call.
        is_owed: whether every op owes a result: whatever it raises then is a finding.
        has_gradients: whether gradients of the changed call are compared.
        is_switch: whether it turns something on or off, which two of may only do together.
        is_at_jump: whether its numbers are exact, so that the reference is right even where results jump.
    """

    key: str
    text: str
    stage: int
    apply: Callable[[Call], Call | None]
    is_owed: bool = False
    has_gradients: bool = True
    is_switch: bool = False
    is_at_jump: bool = False

    @property
    def check(self) -> str:
        """Return the check that looks at such changes alone."""
        if self.text.endswith(NOT_FINITE):
            return "special_values"
        return "low_precision" if self.is_of_dtype else CHECKS_OF_STAGES[self.stage]

    @property
    def is_of_dtype(self) -> bool:
        """Return True if tensors are cast: all, by the key "dtype", or one alone, by "dtype of one"."""
        return self.key.startswith("dtype")

    @property
    def is_large(self) -> bool:
        """Return True if numbers are so large that gradients of what else is changed too may be but rounding."""
        return self.stage == VALUES and self.text.endswith(LARGE)

    @property
    def draws_alike(self) -> bool:
        """Return False if random numbers are others, or come in another order: torch fills tensors as they lie."""
        is_reordered = " in the order " in self.text or self.text.endswith(layouts.REORDERED)
        return not (self.is_of_dtype or (self.stage == LAYOUTS and is_reordered))

    @property
    def is_foreseen(self) -> bool:
        """Return True if a crash is a fault: the author had to think of such sizes and numbers."""
        is_meant = self.key not in ("shapes", OUT_OF_RANGE)
        return self.stage in (SIZES, VALUES, SCALARS) and not self.is_of_dtype and is_meant


def changes_of(target: Target, sample: Sample, needs: frozenset[int]) -> Iterator[Change]:
    """Yield every single change of a sample, those that find most first."""
    written = target.written_positions(sample)
    names = [target.name_of(leaf) for leaf in sample.leaves()]
    yield from _needs(needs, names)
    for text, change in COTANGENT_CHANGES:
        yield Change("cotangent", text, COTANGENTS, partial(_send, change), is_owed="lazily" not in text)
    yield from _layouts(sample, names, written)
    yield from _exact(target, sample, names)
    yield from _scalars(target, sample)
    yield from _broadcasts(sample, names)
    yield from _sizes(target, sample)
    yield from _integers(target, sample, names)
    yield from _values(target, sample, names)
    yield from _dtypes(sample, names)
    yield from _shared(sample, names, written, needs)


def _with(change: Callable[[Sample], Sample | None], call: Call) -> Call | None:
    sample, same = change(call.sample), None if call.same is None else change(call.same)
    return None if sample is None else replace(call, sample=sample, same=same)


def _with_same_results(change: Callable[[Sample], Sample | None], call: Call) -> Call | None:
    changed = _with(change, call)
    return None if changed is None else replace(changed, same=call.sample)


def _sizes(target: Target, sample: Sample) -> Iterator[Change]:
    for key, text, resize in sizes.of(target, sample):
        yield Change(key, text, SIZES, partial(_with, resize))


def _broadcasts(sample: Sample, names: Sequence[str]) -> Iterator[Change]:
    """Yield tensors that are 1, or twice as large, in one dimension, or lack the first one; then all with one more."""
    tensors, pinned = sample.tensors(), pinned_sizes(sample)  # what an integer points at is never made smaller
    count = Counter(size for tensor in tensors for size in tensor.shape)
    for position, tensor in enumerate(tensors):
        if len(tensors) > 1 and can_have_gradient(tensor) and tensor.layout == torch.strided:
            for dim, size in enumerate(tensor.shape):
                if size > 1 and size not in pinned:
                    text = f"with size 1 in dimension {dim}"
                    yield _reshape(f"'{names[position]}'", text, [position], partial(_first_of, dim=dim))
                    if count[size] > 1:  # which may be by chance, or one a multiple of the other
                        text = f"twice as large in dimension {dim}"
                        yield _reshape(f"'{names[position]}'", text, [position], partial(_doubled, dim=dim))
            if tensor.dim() and tensor.shape[0] not in pinned:
                yield _reshape(f"'{names[position]}'", "without its first dimension", [position], _without_first)
    most = max((x.dim() for x in tensors), default=0)
    largest = [i for i, x in enumerate(tensors) if x.dim() == most and x.layout == torch.strided]
    if largest and not any(map(is_index, tensors)):
        what = ", ".join(f"'{names[i]}'" for i in largest)
        yield _reshape(what, "with one more dimension in front", largest, _with_one_more)


def _reshape(what: str, text: str, positions: Sequence[int], change: Callable[[Tensor], Tensor | None]) -> Change:
    return replace(_revalue(what, text, dict.fromkeys(positions, change)), key="shapes", stage=SIZES)


def _first_of(tensor: Tensor, dim: int) -> Tensor | None:
    return tensor.narrow(dim, 0, 1).clone() if dim < tensor.dim() and tensor.shape[dim] else None


def _doubled(tensor: Tensor, dim: int) -> Tensor | None:
    return sizes.jittered(torch.cat([tensor.detach()] * 2, dim)) if dim < tensor.dim() else None


def _without_first(tensor: Tensor) -> Tensor | None:
    return tensor[0].clone() if tensor.dim() and tensor.shape[0] else None


def _with_one_more(tensor: Tensor) -> Tensor:
    return sizes.jittered(torch.stack([tensor.detach(), tensor.detach()]))


def _values(target: Target, sample: Sample, names: Sequence[str]) -> Iterator[Change]:
    numbers = [i for i, x in enumerate(sample.tensors()) if has_arithmetic(x) and x.layout == torch.strided]
    ranges = [range_of(x) for x in sample.tensors()]
    kept = {i for i in numbers if is_ordered(sample.tensors()[i]) and not is_drawn(sample.tensors()[i])}
    for position in numbers:
        if (bounds := ranges[position]) is not None and position not in kept:
            yield _revalue(f"numbers of '{names[position]}'", AT_ENDS, {position: partial(at_ends, bounds=bounds)})
            for text, beyond in outside(bounds) if target.visible_reference is not None else ():
                row = _revalue(f"numbers of '{names[position]}'", text, {position: beyond})
                yield replace(row, key=OUT_OF_RANGE, has_gradients=False)
    for text, change, is_whole in VALUE_CHANGES:
        if target.reference_surrogate and text in (*NOT_FINITE, BOTH_ZEROS):
            continue  # x + (f(x) - x).detach() is nan for an infinite x, as in 1 / 0, whatever f is
        if is_whole and len(numbers) > 1:
            yield _revalue("numbers", text, {i: within_range(change, ranges[i]) for i in numbers if i not in kept})
        for position in numbers:
            within = within_range(in_order(change) if position in kept else change, ranges[position])
            yield _revalue(f"numbers of '{names[position]}'", text, {position: within})


def _revalue(what: str, text: str, made: Mapping[int, Callable[[Tensor], Tensor | None]]) -> Change:
    """Return the change that makes one of some tensors each, by their positions."""

    def apply(sample: Sample) -> Sample | None:
        tensors = [x.detach() for x in sample.tensors()]
        for position, change in made.items():
            changed = change(tensors[position]) if position < len(tensors) else None
            if changed is None:
                return None
            tensors[position] = changed
        return sample.with_tensors(tensors)

    row = Change(what, f"{what} {text}", VALUES, partial(_with, apply))
    return replace(row, has_gradients=text not in OF_VALUES, is_at_jump=text == BOTH_ZEROS)


def _dtypes(sample: Sample, names: Sequence[str]) -> Iterator[Change]:
    for dtype, text, cast in casts(sample):
        yield Change("dtype", text, VALUES, partial(_with, cast), has_gradients=dtype == torch.float64)
    tensors = sample.tensors()
    floating = [i for i, x in enumerate(tensors) if x.is_floating_point()]
    given = {tensors[i].dtype for i in floating}
    others = [dtype for dtype in BESIDE if dtype not in given] if len(floating) > 1 else []
    for position, dtype in itertools.product(floating, others):
        text = f"in {str(dtype).removeprefix('torch.')}"
        change = _revalue(f"'{names[position]}'", text, {position: partial(Tensor.to, dtype=dtype)})
        yield replace(change, key="dtype of one", has_gradients=False)  # few rules are written for two dtypes


def _scalars(target: Target, sample: Sample) -> Iterator[Change]:
    for name, other in call_arguments.scalars(target, sample):
        changed = partial(_with, partial(with_value, target, name=name, value=other))
        is_switch = type(value_of(target, sample, name)) is bool
        yield Change(f"'{name}'", f"{name}={other!r}", SCALARS, changed, is_switch=is_switch)
    for name, text, apply in call_arguments.listed(target, sample):
        yield Change(f"'{name}'", text, SCALARS, partial(_with, apply))
    for row in target.arguments:
        value = value_of(target, sample, row.name)
        if type(value) is int and row.name not in sample.kept:
            others = sorted(call_arguments.other_integers(target, sample, value))
            for other in (*others, *([sizes.LONG] if others else [])):  # a window as long as a long tensor
                yield _replaced(target, row.name, other)
    for argument in declared_arguments(target):
        if argument.name in sample.kept:
            continue
        for value in argument.choices or ():
            yield replace(_replaced(target, argument.name, value), is_switch=True)
        if argument.is_optional:
            yield replace(_replaced(target, argument.name, None), is_switch=True)


def _replaced(target: Target, name: str, value: object) -> Change:
    def apply(sample: Sample) -> Sample | None:
        given = value_of(target, sample, name)
        if Sample(given).tensors() or given == value:
            return None
        return with_value(target, sample, name, value)

    return Change(f"'{name}'", f"{name}={value!r}", SCALARS, partial(_with, apply))


def _integers(target: Target, sample: Sample, names: Sequence[str]) -> Iterator[Change]:
    """Yield other orders of integers that are not sorted, and masks; no integer appears that a tensor does not have."""
    is_known = target.visible_reference is not None or sum(map(is_index, sample.tensors())) == 1
    for position, tensor in enumerate(sample.tensors()):
        what = f"'{names[position]}'"
        if tensor.dtype == torch.bool and tensor.layout == torch.strided:
            for text, change in MASKS:
                yield replace(_revalue(what, text, {position: change}), is_switch=True)
        elif not (is_known and is_index(tensor) and tensor.numel() > 1 and tensor.dim()):
            continue  # several such tensors, of which nothing says what they mean together
        elif _is_sorted(tensor):
            yield _revalue(what, "with two neighbors that are equal", {position: equal_neighbors})
        else:
            yield _revalue(what, "in another order", {position: shuffled})
            if int(tensor.sum()) not in sizes_of(sample):  # lengths, which would no longer add up to it
                yield _revalue(what, "all equal to the first", {position: all_first})
            for argument, value in _ignored(target, sample):
                yield _revalue(what, f"with {argument}={value} in it", {position: element(value)})


def _ignored(target: Target, sample: Sample) -> Iterator[tuple[str, int]]:
    """Yield the numbers among the arguments that are called after what is left out of a computation."""
    for argument in target.arguments:
        value = value_of(target, sample, argument.name)
        if type(value) is int and ("ignore" in argument.name or "pad" in argument.name):
            yield argument.name, value


def _exact(target: Target, sample: Sample, names: Sequence[str]) -> Iterator[Change]:
    """Yield numbers at which results may jump or overflow, if a reference is right there, and other orders of keys."""
    for text, apply in coincidences(sample, names) if target.visible_reference is not None else ():
        yield Change("coincidence", text, VALUES, partial(_with, apply), has_gradients=False, is_at_jump=True)
    for text, apply in large_integers(target, sample) if target.visible_reference is not None else ():
        yield Change("integers", text, SCALARS, partial(_with, apply), has_gradients=False)
    for text, apply, is_same in call_arguments.reordered(target, sample):
        make = partial(_with_same_results if is_same else _with, apply)
        yield Change("order of keys", text, SCALARS, make, has_gradients=False)


def _is_sorted(tensor: Tensor) -> bool:
    return ascends(tensor) or ascends(tensor.reshape(-1).flip(0))


def _shared(sample: Sample, names: Sequence[str], written: frozenset[int], needs: frozenset[int]) -> Iterator[Change]:
    tensors = sample.tensors()
    for one, other in itertools.combinations(range(len(tensors)), 2):
        a, b = tensors[one], tensors[other]
        both = len(needs & {one, other}) != 1  # else the gradient of one alone is not what a reference gives for both
        is_alike = a.shape == b.shape and a.dtype == b.dtype and a.layout == b.layout
        if is_alike and can_have_gradient(a) and a.numel() and not written & {one, other}:
            text = f"one tensor for '{names[one]}' and '{names[other]}'"
            yield Change("one tensor", text, SHARED, partial(_share, one, other), is_owed=True, has_gradients=both)
            if a.dim() > 1:
                text = f"'{names[other]}' is '{names[one]}' transposed, in the same memory"
                yield Change("one tensor", text, SHARED, partial(_view, one, other), has_gradients=both)


def _share(one: int, other: int, call: Call) -> Call | None:
    tensors = [x.detach() for x in call.sample.tensors()]
    if other >= len(tensors) or tensors[one].shape != tensors[other].shape:
        return None
    tensors[other] = tensors[one]
    needs = call.needs | {one} if call.needs & {one, other} else call.needs
    return replace(call, sample=call.sample.with_tensors(tensors), needs=needs - {other}, shared=(one, other))


def _view(one: int, other: int, call: Call) -> Call | None:
    tensors = [x.detach() for x in call.sample.tensors()]
    if other >= len(tensors) or tensors[one].dim() < 2 or tensors[other].shape != tensors[one].mT.shape:
        return None
    tensors[other] = tensors[one].mT
    return replace(call, sample=call.sample.with_tensors(tensors))


def _layouts(sample: Sample, names: Sequence[str], written: frozenset[int]) -> Iterator[Change]:
    for position, tensor in enumerate(sample.tensors()):
        if tensor.layout != torch.strided or tensor.is_quantized:
            continue
        for text, change in layouts.of(tensor):
            if text == layouts.EXPANDED and (position in written or is_index(tensor)):
                continue
            key = f"layout of '{names[position]}'"
            apply = partial(_lay_out, position, change)
            yield Change(key, f"'{names[position]}' {text}", LAYOUTS, apply, is_owed=True)


def _lay_out(position: int, change: Callable[[Tensor], Tensor | None], call: Call) -> Call | None:
    tensors = [x.detach() for x in call.sample.tensors()]
    changed = change(tensors[position]) if position < len(tensors) else None
    if changed is None or (call.shared and position in call.shared):
        return None
    tensors[position] = changed
    return replace(call, sample=call.sample.with_tensors(tensors))


def _needs(needs: frozenset[int], names: Sequence[str]) -> Iterator[Change]:
    positions = sorted(needs)
    for chosen in subsets(len(positions)) if len(positions) > 1 else ():
        if len(chosen) < len(positions):
            kept = frozenset(positions[i] for i in chosen)
            text = f"only {', '.join(repr(names[i]) for i in sorted(kept))} needs a gradient"
            yield Change("needs", text, NEEDS, partial(_need, kept), is_owed=True)


def _need(kept: frozenset[int], call: Call) -> Call | None:
    return replace(call, needs=call.needs & kept) if call.needs & kept else None


def _send(change: Cotangent, call: Call) -> Call:
    return replace(call, cotangent=change)
