"""A batch of calls by torch.vmap, along any dimensions and nested; loops give the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.verification.calls.call import Call, Outcome, UnfitError, Way, WrongError, contiguous
from custom_autograd.verification.harness.base import find_refusal, first_line, rule_behind
from custom_autograd.verification.harness.differentiable import TensorsFunction
from custom_autograd.verification.harness.records import result_names
from custom_autograd.verification.harness.sweeps import has_arithmetic, subsets
from custom_autograd.verification.harness.targets import Function, Target
from custom_autograd.verification.harness.tracing import TensorCall

InDims: TypeAlias = tuple[int | None, ...]
"""The dimension along which each tensor of a sample is batched; None for one that is not."""

BATCH, LARGER, LARGEST = 3, 5, 9
"""The number of calls; above 8, no kernel takes it for a vector."""

MOST_CASES = 30

NO_RULE = "the op has no batching rule and says so: "

OF_TORCH = (RuntimeError, TypeError, NotImplementedError)
"""What torch raises for an op without a batching rule."""


@dataclass(frozen=True, slots=True)
class Batching:
    """The in_dims of each level, the outer level first, and the number of calls in each level."""

    levels: tuple[InDims, ...]
    size: int = BATCH

    def described(self, names: Sequence[str]) -> str:
        """Return a text such as "batched over 'x', 'w' at dimension 0", or "..., and within over ..."."""
        text = "batched over " + ", and within over ".join(_level(dims, names) for dims in self.levels)
        return text if self.size == BATCH else f"{text}, {self.size} of them"

    def way(self, names: Sequence[str]) -> Way:
        """Return the way to call so; the loop is the same for all dimensions along which the batch may lie."""
        along_first = tuple(tuple(None if dim is None else 0 for dim in dims) for dims in self.levels)
        loop = replace(self, levels=along_first)
        return Way(self.described(names), self.mapped, loop, has_gradients=False, oracle="a loop")

    def mapped(self, target: Target, call: Call) -> Iterator[Outcome]:
        """Give the results of torch.vmap."""
        written = target.written_positions(call.sample)
        is_kept = all(dims[position] is not None for dims in self.levels for position in written)
        if call.shared is not None or not is_kept or any(set(dims) <= {None} for dims in self.levels):
            raise UnfitError
        one, values = TensorCall(target, call.sample), self._values(call.sample.tensors())
        batched: TensorsFunction = one
        for dims in reversed(self.levels):
            batched = torch.vmap(batched, in_dims=dims, randomness="different")
        try:
            with torch.no_grad():
                found = batched(*values)
        except Exception as error:
            # On the slices themselves, written ones too: a clone of a slice would have strides of its own.
            copies = [x.clone() for x in values]
            _distinguish(target, error, lambda: _looped(one.on, copies, self.levels))
            raise
        yield dict(zip(result_names(target, call.sample, len(found)), found, strict=True))

    def __call__(self, target: Target, function: Function, call: Call, only: Sequence[str] | None) -> Outcome:
        """Return the results of loops, one inside the other, over contiguous slices."""
        del only
        one = TensorCall(replace(target, call=function), call.sample)
        with torch.no_grad():
            values = self._values(call.sample.tensors())
            found = _looped(lambda *xs: one(*map(contiguous, xs)), values, self.levels)
        return dict(zip(result_names(target, call.sample, len(found)), found, strict=True))

    def _values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors with a dimension for each level, in which they vary; the outer level's is made last."""
        values = [x.detach() for x in tensors]
        for dims in reversed(self.levels):
            pairs = zip(values, dims, strict=True)
            values = [
                x if dim is None else torch.stack([_vary(x, i) for i in range(self.size)], dim) for x, dim in pairs
            ]
        return values


def _distinguish(target: Target, error: Exception, loop: Callable[[], object]) -> None:
    """Raise what an exception under vmap means; nothing where it is for others to say."""
    try:
        with torch.no_grad():
            loop()
    except UnfitError:
        raise
    except Exception as refusal:  # noqa: BLE001 - in whatever words: the slices have other strides than the sample
        raise UnfitError(f"the op refuses a slice ({first_line(refusal)})") from error
    refused = find_refusal(error) if isinstance(error, OF_TORCH) else None
    if refused is not None or (target.is_composed and isinstance(error, OF_TORCH)):
        raise UnfitError(f"{NO_RULE}{refused or first_line(error)}") from error
    rule = rule_behind(error)
    if rule is not None:
        text = f"vmap raises {first_line(error)} ({rule})"
        raise WrongError(text, "a batching rule that is registered takes every batch, or it is taken away") from error


def _looped(call: TensorsFunction, values: Sequence[Tensor], levels: Sequence[InDims]) -> tuple[Tensor, ...]:
    if not levels:
        return call(*values)
    dims, *inner = levels
    size = next(x.shape[dim] for x, dim in zip(values, dims, strict=True) if dim is not None)
    steps = []
    for step in range(size):
        slices = [x if dim is None else x.select(dim, step) for x, dim in zip(values, dims, strict=True)]
        steps.append(_looped(call, slices, inner))
    if len({tuple(output.shape for output in outputs) for outputs in steps}) > 1:
        raise UnfitError("the size of its results depends on the data, so they cannot be stacked")
    return tuple(torch.stack(outputs) for outputs in zip(*steps, strict=True))


def _vary(tensor: Tensor, step: int) -> Tensor:
    """Return the same tensor, scaled a little per step: signs, order and bounds of 1 stay, and so do integers."""
    return tensor * (1 - 0.1 * step) if has_arithmetic(tensor) else tensor


def _level(dims: InDims, names: Sequence[str]) -> str:
    pairs = [(name, dim) for name, dim in zip(names, dims, strict=True) if dim is not None]
    if len({dim for _, dim in pairs}) == 1:
        quoted = ", ".join(f"'{name}'" for name, _ in pairs)
        return f"{quoted} at dimension {pairs[0][1]}"
    return ", ".join(f"'{name}' at dimension {dim}" for name, dim in pairs)


def batchings_of(tensors: Sequence[Tensor], written: frozenset[int]) -> Iterator[Batching]:
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


def _drawn(text: str, dims: Callable[[Sequence[Tensor]], InDims]) -> Way:
    """Return a way for calls of any number of tensors."""

    def batching(call: Call) -> Batching:
        return Batching((dims(call.sample.tensors()),), LARGEST)

    def loop(target: Target, function: Function, call: Call, only: Sequence[str] | None) -> Outcome:
        return batching(call)(target, function, call, only)

    def mapped(target: Target, call: Call) -> Iterator[Outcome]:
        return batching(call).mapped(target, call)

    return Way(text, mapped, loop, has_gradients=False, draws_alike=False)


def _at(position: int, dim: int) -> Callable[[Sequence[Tensor]], InDims]:
    return lambda tensors: tuple(min(dim, x.dim()) if i == position else None for i, x in enumerate(tensors))


BATCHES: tuple[Way, ...] = (
    _drawn("vmap over all", lambda tensors: (0,) * len(tensors)),
    _drawn("vmap over the first tensor", _at(0, 0)),
    _drawn("vmap over the second tensor", _at(1, 0)),
    _drawn("vmap over the third tensor", _at(2, 0)),
    _drawn("vmap over the first tensor at dimension 1", _at(0, 1)),
    _drawn("vmap over the second tensor at dimension 1", _at(1, 1)),
)
