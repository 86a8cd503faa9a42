"""The fake kernel agrees with the real one: in every layout, size and dtype, and run on symbols for every size.

Of symbols it fixes none, and its answer holds at other sizes.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.symbols import Symbols, symbolic_mode
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.calls import layouts
from custom_autograd.verification.calls.call import Call, begin, run
from custom_autograd.verification.calls.numbers import casts
from custom_autograd.verification.harness.agreement import (
    MOST_ELEMENTS,
    VARIED,
    accepted,
    accepted_sizes,
    integers,
    kinds,
    long_sizes,
    takes_as_reference,
)
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    root_cause,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_untruth
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.pace import Pace
from custom_autograd.verification.harness.records import has_derived_fake, output_names
from custom_autograd.verification.harness.sweeps import copy, elements_of, free_sizes, growths, resized
from custom_autograd.verification.harness.targets import Target, call_on
from custom_autograd.verification.harness.tracing import fake_outputs, find_real, judge_raised

LONG = 1031
"""A size that no sample has: a prime above a thousand."""


class Fake(Check):
    """The fake kernel's results, compared with the real kernel's."""

    name = "fake"
    code = "C01"
    group = "metadata"
    is_quick = True
    purpose = "fake outputs have the shape, stride, dtype and device of the real ones, in every layout, size and dtype"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding per layout, one per size, and one per dtype."""
        written = target.written_positions(sample)
        others = accepted_sizes(target, sample), accepted(target, sample, long_sizes(sample, LONG))
        pace = Pace(target, sample)
        for label, variant in itertools.chain(layouts.of_all(sample, written=written), *others):
            if reason := pace.why_not(variant):
                yield skipped(f"{label}: {reason}")
                continue
            finding = _check_variant(target, variant, label)
            if finding.status != "skipped" or not label.startswith(VARIED):
                yield finding
            if label == "as given" and finding.status == "skipped":
                return
        yield from _check_dtypes(target, sample)
        yield from _check_device(target, sample)


def _check_device(target: Target, sample: Sample) -> Iterator[Finding]:
    """Call the kernel of all devices and the rules without data, on no device: a tensor of the CPU is refused."""
    default = target.kernels.get("")
    if default is None or any(x.layout != torch.strided for x in sample.tensors()):
        return
    able = frozenset(i for i, x in enumerate(sample.tensors()) if can_have_gradient(x))
    call = Call(sample.map(lambda x: x.detach().to("meta")), able)
    for text, make in (
        ("the default kernel", lambda: begin(target, default, replace(call, needs=frozenset()))),
        ("a rule", lambda: run(target, target.call, call)),
    ):
        with kept_random_state():
            try:
                make()
            except Exception as error:  # noqa: BLE001 - it reads numbers, or refuses it
                if any(words in str(error) for words in OF_DEVICES):
                    yield failed(f"on another device than the CPU {text} raises {first_line(error)}", cause=ON_THE_CPU)
                    return
    yield PASSED


OF_DEVICES = ("the same device", "is not on the expected device", "found two different devices")
"""Parts of the errors that torch raises for tensors of several devices."""

ON_THE_CPU = (
    "it makes a tensor on the CPU: give it device=x.device, or use x.new_empty; an op of the CPU alone says so with"
    " device_types='cpu'"
)


def _check_dtypes(target: Target, sample: Sample) -> Iterator[Finding]:
    """Check every floating dtype that the op takes; then other kinds of numbers, which were not declared.

    Of those a mistake is a failure where the op answers in the dtype that it is given; else it is advice.
    """
    casted = ((dtype, cast(sample)) for dtype, _, cast in casts(sample))
    declared = [(dtype, copy(variant)) for dtype, variant in casted if variant is not None]
    if target.reference is not None:
        declared += integers(sample)  # what points into memory is only read as the reference allows
    for dtype, variant in declared:
        finding = _check_variant(target, variant, str(dtype).removeprefix("torch."))
        if finding.status != "skipped":
            yield finding
    for dtype, variant in kinds(sample):
        if not takes_as_reference(target, variant):
            continue
        finding = _check_variant(target, variant, str(dtype).removeprefix("torch."))
        if finding.status == "failed" and not _answers_in(target, sample, variant, dtype):
            yield Finding("passed", advice=f"no sample has such numbers, so this is advice: {finding.message}")
            return
        elif finding.status != "skipped":
            yield finding


def _answers_in(target: Target, sample: Sample, variant: Sample, dtype: torch.dtype) -> bool:
    """Return True if the outputs that are floating for the sample have the dtype of the variant."""
    with torch.no_grad():
        usual = call_on(target.full, sample.map(torch.clone))
        outputs = call_on(target.full, variant.map(torch.clone))
    pairs = zip(usual, outputs, strict=False)
    return all(output.dtype == dtype for other, output in pairs if other.is_floating_point())


def _check_variant(target: Target, sample: Sample, label: str) -> Finding:
    with torch.no_grad():
        try:
            real = call_on(target.full, sample)
        except Exception as error:
            if label == "as given":
                raise
            return skipped(f"{label}: the op refuses it ({first_line(error)})")
        try:
            fake = fake_outputs(target, sample)
        except Exception as error:  # noqa: BLE001 - whatever the fake raises where the kernel does not is a finding
            refusal = find_refusal(error)
            if refusal is not None:
                return skipped(refusal)
            if target.overload is None:
                return skipped(f"it has no fake kernel, and cannot be traced: {first_line(root_cause(error))}")
            return failed(f"{label}: the fake kernel raises {first_line(root_cause(error))}")
    difference = find_untruth(fake, real, output_names(target, len(real)))
    if difference is None:
        return PASSED
    what, text = difference
    return failed(f"{label}: {text}", cause=_why(target, sample, what, real) if has_derived_fake(target) else "")


def _why(target: Target, sample: Sample, what: str, real: Sequence[Tensor]) -> str:
    """Return what to do about a reference whose outputs are not those of the kernel, with or without data."""
    names = output_names(target, len(real))
    if target.reference is not None and find_untruth(call_on(target.reference, sample), real, names) is None:
        return f"{META.format(what=what)}: {CONTIGUOUS}"
    if what != "stride":
        return f"the fake is derived from the reference, which returns another {what}: register_fake"
    is_contiguous = all(output.layout == torch.strided and output.is_contiguous() for output in real)
    return f"{STRIDES}: {CONTIGUOUS if is_contiguous else OTHER}"


META = (
    "a fault of torch, not of the op: the meta kernels that the reference calls return another {what} than the kernels"
)
STRIDES = "all kernels of an op return the same strides, and the fake is derived from the reference"
CONTIGUOUS = "end the reference in .contiguous(), or register_fake with x.new_empty(x.shape)"
OTHER = "let the kernel return the strides of the reference, or register_fake those of the kernel"


MOST_EDGES = 4
"""Conditions of one fake kernel that are looked at."""


class Symbolic(Check):
    """The fake kernel's results for symbolic sizes, compared with the real kernel's for larger ones."""

    name = "symbolic"
    code = "C02"
    group = "metadata"
    is_quick = True
    needs = ("fake",)
    purpose = "the fake kernel takes symbolic sizes: it fixes none, and outputs follow inputs"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless it is an op of the dispatcher: only such an op has a fake kernel."""
        return "only an op of the dispatcher has a fake kernel" if target.overload is None else None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per set of other sizes that the op takes."""
        if any(tensor.layout != torch.strided for tensor in sample.tensors()):
            raise NothingToCheckError("the sizes of a sparse tensor are not symbols")
        base, free = resized(sample, {}), free_sizes(sample)
        if not free:
            raise NothingToCheckError(FIXED)
        if find_real(target, base, base) is None:
            raise NothingToCheckError("the op or its fake kernel raises where every tensor is contiguous")
        with torch.no_grad(), symbolic_mode() as symbols:
            positions = iter(range(len(base.tensors())))
            fakes = base.map(lambda tensor: symbols.fake(tensor, next(positions), free))
            try:
                said = call_on(target.full, fakes)
            except Exception as error:  # noqa: BLE001 - whatever the fake kernel raises is what there is to report
                cause = _cause_of(target, "it reads a size as a number")
                yield judge_raised("with symbolic sizes the fake kernel raises", error, cause=cause)
                return
        yield from _compare_sizes(target, base, said, symbols)
        yield from _check_edges(target, base, symbols)


FIXED = "no size can vary: each is 0 or 1, equals a number among the arguments, or belongs to a tensor of integers"


def _compare_sizes(target: Target, base: Sample, said: Sequence[Tensor], symbols: Symbols) -> Iterator[Finding]:
    """Compare each growth of the sizes that the op takes with the fake's shapes."""
    count = 0
    for sizes in growths(base):
        done = find_real(target, resized(base, sizes), base)
        if done is None or len(done) != len(said):
            continue
        fixed = [size for size in sizes if symbols.is_fixed(size)]
        if not fixed and not symbols.holds_for(sizes):
            continue
        count += 1
        yield _fixed(target, base, fixed[0], sizes) if fixed else _at(target, base, said, done, symbols, sizes)
    if not count:
        yield skipped("the op takes no other sizes than those of the sample, or its fake kernel distinguishes them")


def _check_edges(target: Target, base: Sample, symbols: Symbols) -> Iterator[Finding]:
    """Check sizes beyond each number that the fake kernel compares a size with; the comparison itself is advice."""
    names = {size: _dimension_of(target, base, size) for size in free_sizes(base)}
    for condition, beyond in itertools.islice(symbols.edges(names), MOST_EDGES):
        text = f"the fake kernel tests whether {condition}"
        advice = f"{text}: the compiler compiles again on the other side"
        for sizes in beyond:
            if elements_of(base, sizes) > MOST_ELEMENTS:
                yield skipped(f"{text}, and a size on the other side is too large to run", advice=advice)
                continue
            (size,) = sizes.values()
            yield from _check_edge(target, base, resized(base, sizes), f"{text}; where it is {size}", advice)


def _check_edge(target: Target, base: Sample, sample: Sample, text: str, advice: str) -> Iterator[Finding]:
    done = find_real(target, sample, base)
    if done is None:
        return
    with torch.no_grad():
        untruth = find_untruth(fake_outputs(target, sample), done, output_names(target, len(done)))
    if untruth is None:
        yield Finding("passed", advice=advice)
    else:
        yield failed(f"{text}, {untruth[1]}", cause="the fake kernel branches on a size")


def _fixed(target: Target, sample: Sample, size: int, sizes: Mapping[int, int]) -> Finding:
    text = f"the fake kernel holds for size {size} ({_dimension_of(target, sample, size)}) alone, and the op runs with"
    return failed(f"{text} {sizes[size]}", cause=_cause_of(target, "int(...) or == makes a number of a size"))


def _cause_of(target: Target, cause: str) -> str:
    """Return what makes a number of a size: in a reference a loop, as a rule, which is no mistake there."""
    return DERIVED if has_derived_fake(target) else cause


def _at(
    target: Target,
    sample: Sample,
    said: Sequence[Tensor],
    done: Sequence[Tensor],
    symbols: Symbols,
    sizes: Mapping[int, int],
) -> Finding:
    for name, fake, real in zip(output_names(target, len(done)), said, done, strict=True):
        if fake.dim() != real.dim():
            return failed(f"{name}: the fake kernel gives {fake.dim()} dimensions, the real one {real.dim()}")
        shape = [symbols.size_at(size, sizes) for size in fake.shape]
        if any(size is not None and size != found for size, found in zip(shape, real.shape, strict=True)):
            changes = [f"{_dimension_of(target, sample, old)} is {new} instead of {old}" for old, new in sizes.items()]
            text = f"{name}: where {', '.join(changes)}, the fake kernel gives shape {_shown(shape)}"
            is_constant = all(isinstance(size, int) for size in fake.shape)
            return failed(f"{text}, the real one gives {tuple(real.shape)}", cause=CONSTANT if is_constant else "")
    return PASSED


DERIVED = (
    "the fake is derived from the reference, which loops over a size or makes a number of it by int(...) or ==: "
    "register_fake"
)

CONSTANT = "the fake kernel always gives the same shape"


def _dimension_of(target: Target, sample: Sample, size: int) -> str:
    """Return the first dimension of a size, in words."""
    dimensions = [
        f"dimension {list(leaf.tensor.shape).index(size)} of '{target.name_of(leaf)}'"
        for leaf in sample.leaves()
        if size in leaf.tensor.shape
    ]
    return dimensions[0]


def _shown(shape: Sequence[int | None]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in shape)}{',' if len(shape) == 1 else ''})"
