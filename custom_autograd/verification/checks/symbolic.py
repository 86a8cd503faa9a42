"""The fake kernel answers for every size: run on symbols, it fixes no size, and its answer holds at other sizes."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.symbols import Symbols, symbolic_mode
from custom_autograd.torch_private.verification import fake_mode
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed, skipped
from custom_autograd.verification.harness.comparison import find_untruth
from custom_autograd.verification.harness.passes import judge_raised
from custom_autograd.verification.harness.records import has_derived_fake, output_names
from custom_autograd.verification.harness.sweeps import elements_of, free_sizes, growths, resized
from custom_autograd.verification.harness.targets import Target, call_on
from custom_autograd.verification.harness.variants import MOST_ELEMENTS, is_within_domain

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
        if _find_real(target, base, base) is None:
            raise NothingToCheckError("the op or its fake kernel raises where every tensor is contiguous")
        with torch.no_grad(), symbolic_mode() as symbols:
            positions = iter(range(len(base.tensors())))
            fakes = base.map(lambda tensor: symbols.fake(tensor, next(positions), free))
            try:
                said = call_on(target.full, fakes)
            except Exception as error:  # noqa: BLE001 - whatever the fake kernel raises is what there is to report
                cause = _why(target, "it reads a size as a number")
                yield judge_raised("with symbolic sizes the fake kernel raises", error, cause=cause)
                return
        yield from _compare(target, base, said, symbols)
        yield from _check_edges(target, base, symbols)


FIXED = "no size can vary: each is 0 or 1, equals a number among the arguments, or belongs to a tensor of integers"


def _compare(target: Target, base: Sample, said: Sequence[Tensor], symbols: Symbols) -> Iterator[Finding]:
    """Compare each growth of the sizes that the op takes with the fake's shapes."""
    count = 0
    for sizes in growths(base):
        done = _find_real(target, base, resized(base, sizes))
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
    done = _find_real(target, base, sample)
    if done is None:
        return
    with torch.no_grad(), fake_mode() as to_fake:
        untruth = find_untruth(call_on(target.full, sample.map(to_fake)), done, output_names(target, len(done)))
    if untruth is None:
        yield Finding("passed", advice=advice)
    else:
        yield failed(f"{text}, {untruth[1]}", cause="the fake kernel branches on a size")


def _find_real(target: Target, base: Sample, sample: Sample) -> tuple[Tensor, ...] | None:
    """Return what the op returns at other sizes; None if its fake or real kernel refuses them."""
    if not is_within_domain(target, base, sample):
        return None
    with torch.no_grad():
        try:
            with fake_mode() as to_fake:
                call_on(target.full, sample.map(to_fake))
            return call_on(target.full, sample.map(lambda tensor: tensor.detach()))
        except Exception:  # noqa: BLE001 - an op need not take every size, and may raise any error
            return None


def _fixed(target: Target, sample: Sample, size: int, sizes: Mapping[int, int]) -> Finding:
    text = f"the fake kernel holds for size {size} ({_dimension_of(target, sample, size)}) alone, and the op runs with"
    return failed(f"{text} {sizes[size]}", cause=_why(target, "int(...) or == makes a number of a size"))


def _why(target: Target, cause: str) -> str:
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
