"""torch.vmap gives what a loop over the batch gives, whichever arguments are batched along whichever dimension."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.call_arguments import with_other_scalars
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_difference, require_same
from custom_autograd.verification.harness.differentiable import TensorsFunction
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.records import result_names
from custom_autograd.verification.harness.sweeps import copy, subsets
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import TensorCall

BATCH = 3
LARGER = 5
MOST_CASES = 30

InDims: TypeAlias = tuple[int | None, ...]
"""The dimension along which each tensor of a sample is batched; None for one that is not."""


class Vmap(Check):
    """Every combination of in_dims out of None, 0 and -1, some with 1, and vmap of vmap; then another scalar."""

    name = "vmap"
    code = "T01"
    group = "transforms"
    purpose = "vmap equals a loop over the batch, whichever arguments are batched, and nested"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per case; an op that says it has no batching rule is honest, and skipped."""
        leaves = sample.leaves()
        if not leaves:
            raise NothingToCheckError("the sample has no tensor to batch")
        if any(leaf.tensor.layout != torch.strided for leaf in leaves):
            raise NothingToCheckError("a tensor of the sample is not strided, and cannot be batched")
        if has_generator(sample):
            raise NothingToCheckError("it draws from a generator that every call of a loop is given again")
        written = target.written_positions(sample)
        loop = _loop(target, sample)
        for batching in _cases(loop.tensors, written):
            yield _check(loop, batching, is_composed=target.is_composed)
        yield from _check_scalars(target, sample)


@dataclass(frozen=True, slots=True)
class Batching:
    """The in_dims of each level, the outer level first, and the number of calls in each level."""

    levels: tuple[InDims, ...]
    size: int = BATCH

    @property
    def is_plain(self) -> bool:
        """Return True for one level along the first dimension: its slices lie in memory as the sample does."""
        return len(self.levels) == 1 and set(self.levels[0]) <= {0, None}

    def described(self, names: Sequence[str]) -> str:
        """Return a text such as "batched over 'x', 'w' at dimension 0", or "..., and within over ..."."""
        text = "batched over " + ", and within over ".join(_level(dims, names) for dims in self.levels)
        return text if self.size == BATCH else f"{text}, {self.size} of them"


@dataclass(frozen=True, slots=True)
class Loop:
    """Results of a loop over a batch, computed once for all dimensions along which the batch may lie.

    Args:
        call: what is called.
        tensors: its arguments without a batch.
        names: what to call them.
        outputs: what to call so many results.
        known: the results that are computed already.
    """

    call: TensorsFunction
    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]
    outputs: Callable[[int], Sequence[str]]
    known: dict[object, tuple[Tensor, ...]] = field(default_factory=dict)

    def results(self, batching: Batching, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the results for batched values.

        Raises:
            NothingToCheckError: results of equal inputs differ, or cannot be stacked.
        """
        key = batching.size, tuple(tuple(dim is None for dim in dims) for dims in batching.levels)
        if key not in self.known:
            self.known[key] = _looped(self.call, values, batching)
        return self.known[key]


def _loop(target: Target, sample: Sample) -> Loop:
    names = tuple(target.name_of(leaf) for leaf in sample.leaves())
    outputs = functools.partial(result_names, target, sample)
    return Loop(TensorCall(target, copy(sample)), copy(sample).tensors(), names, outputs)


def _cases(tensors: Sequence[Tensor], written: frozenset[int]) -> Iterator[Batching]:
    """Yield one level in every combination, and with a larger batch, then two levels."""
    size = len(tensors)
    along_first = [_along(chosen, 0, size) for chosen in subsets(size)]
    mixed = itertools.product(*((None, 0, -1) if tensor.dim() else (None, 0) for tensor in tensors))
    everything = list(range(size))
    ordered = [*along_first, _along(everything, -1, size), *_middle(tensors), *itertools.islice(mixed, MOST_CASES)]
    for dims in dict.fromkeys(ordered):
        if set(dims) != {None} and all(dims[position] is not None for position in written):
            yield Batching((dims,))
    yield Batching((_along(everything, 0, size),), LARGER)
    yield Batching((_along(everything, 0, size), _along(everything, 0, size)))
    if size > 1:
        outer, inner = sorted(written | {0}), sorted(written | set(everything[1:]))
        yield Batching((_along(outer, 0, size), _along(inner, -1, size)))


def _middle(tensors: Sequence[Tensor]) -> Iterator[InDims]:
    """Yield dimension 1 of matrices, neither first nor last: for all, for one of the first two with 0, and alone."""
    if all(tensor.dim() < 2 for tensor in tensors):
        return
    yield tuple(min(1, tensor.dim()) for tensor in tensors)
    for position, tensor in enumerate(tensors[:2]):
        if tensor.dim() >= 2:
            yield tuple(int(other == position) for other in range(len(tensors)))
            yield _along([position], 1, len(tensors))


def _along(chosen: Iterable[int], dim: int, size: int) -> InDims:
    positions = set(chosen)
    return tuple(dim if position in positions else None for position in range(size))


def _check(loop: Loop, batching: Batching, *, is_composed: bool) -> Finding:
    values = _batched(loop.tensors, batching)
    batched = loop.call
    for dims in reversed(batching.levels):
        batched = torch.vmap(batched, in_dims=dims, randomness="different")
    with torch.no_grad():
        try:
            expected = loop.results(batching, values)
        except NothingToCheckError as reason:
            return skipped(str(reason))
        except Exception as error:
            if batching.is_plain:
                raise
            return skipped(_refusal(loop, batching, error))
        try:
            found = batched(*values)
        except Exception as error:
            if _refuses_slices(loop.call, values, batching):
                return skipped(_refusal(loop, batching, error))
            refusal = find_refusal(error) if isinstance(error, OF_TORCH) else None
            if refusal is None and not (is_composed and isinstance(error, OF_TORCH)):
                raise
            return skipped(f"the op has no batching rule and says so: {refusal or first_line(error)}")
    difference = find_difference(found, expected, names=loop.outputs(len(expected)), factor=10.0)
    return (
        PASSED if difference is None else difference.failed(f"{batching.described(loop.names)}: {difference} by a loop")
    )


OF_TORCH = (RuntimeError, TypeError, NotImplementedError)
"""What torch raises for an op without a batching rule."""


def _refusal(loop: Loop, batching: Batching, error: Exception) -> str:
    return f"{batching.described(loop.names)}: the op refuses a slice ({first_line(error)})"


def _refuses_slices(call: TensorsFunction, values: Sequence[Tensor], batching: Batching) -> bool:
    """Return True if the op raises where a loop gives it slices of these very values, whose strides are others."""
    try:
        _looped(call, values, batching)
    except NothingToCheckError:
        return False
    except Exception:  # noqa: BLE001 - in whatever words
        return True
    return False


def _check_scalars(target: Target, sample: Sample) -> Iterator[Finding]:
    """Yield the first other float among the arguments that the op takes, with everything batched."""
    count = len(sample.leaves())
    batching = Batching((_along(range(count), 0, count),))
    for label, variant in with_other_scalars(target, sample):
        if _floats(variant) == _floats(sample):
            continue
        loop = _loop(target, variant)
        try:
            with torch.no_grad():
                expected = loop.results(batching, _batched(loop.tensors, batching))
        except Exception:  # noqa: BLE001 - whatever the op raises, it was not made for this number
            continue
        if all(bool(torch.isfinite(output).all()) for output in expected):
            finding = _check(loop, batching, is_composed=target.is_composed)
            yield finding if finding.status != "failed" else failed(f"{label}: {finding.message}", cause=finding.cause)
            return


def _floats(sample: Sample) -> list[float]:
    return [value for value in (*sample.args, *sample.kwargs.values()) if isinstance(value, float)]


def _batched(tensors: Sequence[Tensor], batching: Batching) -> list[Tensor]:
    """Return the tensors with a dimension for each level, in which they vary; that of the outer level is made last."""
    values = list(tensors)
    for dims in reversed(batching.levels):
        values = [
            x if dim is None else torch.stack([_vary(x, step) for step in range(batching.size)], dim)
            for x, dim in zip(values, dims, strict=True)
        ]
    return values


def _looped(call: TensorsFunction, values: Sequence[Tensor], batching: Batching) -> tuple[Tensor, ...]:
    """Return what loops give, one inside the other.

    Raises:
        NothingToCheckError: results of equal inputs differ, or cannot be stacked.
    """
    if not batching.levels:
        outputs = call(*values)
        require_same(call(*values), outputs)
        return outputs
    (dims, *inner), steps = batching.levels, []
    for step in range(batching.size):
        slices = [x if dim is None else x.select(dim, step) for x, dim in zip(values, dims, strict=True)]
        steps.append(_looped(call, slices, Batching(tuple(inner), batching.size)))
    if len({tuple(output.shape for output in outputs) for outputs in steps}) > 1:
        raise NothingToCheckError("the size of its results depends on the data, so they cannot be stacked")
    return tuple(torch.stack(outputs) for outputs in zip(*steps, strict=True))


def _level(dims: InDims, names: Sequence[str]) -> str:
    pairs = [(name, dim) for name, dim in zip(names, dims, strict=True) if dim is not None]
    if len({dim for _, dim in pairs}) == 1:
        quoted = ", ".join(f"'{name}'" for name, _ in pairs)
        return f"{quoted} at dimension {pairs[0][1]}"
    return ", ".join(f"'{name}' at dimension {dim}" for name, dim in pairs)


def _vary(tensor: Tensor, step: int) -> Tensor:
    """Return the same tensor, scaled a little per step: signs, order and bounds of 1 stay, and so do integers."""
    is_continuous = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach() * (1 - 0.1 * step) if is_continuous else tensor.detach()
