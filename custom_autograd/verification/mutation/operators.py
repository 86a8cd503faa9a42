"""OPERATORS, the ways to change a rule or a kernel: each is a row that makes a wrong function of a right one.

A mistake keeps the shape and dtype of what it changes, and stays differentiable where the right function is: only then
does it show whether tests look at numbers. Mistakes that remember or write do what the right function does under a
transform, a trace or a tensor subclass: a buffer that outlives a transform raises an error there, which any test would
notice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.torch_private.transforms import is_transforming
from custom_autograd.verification.mutation import mistakes
from custom_autograd.verification.mutation.mistakes import first_tensor, map_arguments, map_results, swap_results
from custom_autograd.verification.mutation.points import Function, Kind, MutationPoint

IsMeant: TypeAlias = Callable[["int | str"], bool]
"""Of an argument, by its position or its keyword: is it changed?"""


@dataclass(frozen=True, slots=True)
class Operator:
    """One way to change a function.

    Args:
        name: what reports call it.
        purpose: completes "the mistake of a rule that ...".
        kinds: the kinds of functions that it changes.
        change: a mutant -> the wrong function, with a state of its own where it has one.
        parts: a mutant for each; what "" or a name means is up to the operator.
    """

    name: str
    purpose: str
    kinds: tuple[Kind, ...]
    change: Callable[[Mutant], Function]
    parts: Callable[[MutationPoint], tuple[str, ...]] = lambda point: ("",)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One operator at one mutation point."""

    point: MutationPoint
    operator: Operator
    part: str

    @property
    def label(self) -> str:
        """Return the operator's name, with the part it changes: "drop[x]"."""
        return f"{self.operator.name}[{self.part}]" if self.part else self.operator.name

    @property
    def path(self) -> str:
        """Return what finds it in another process: "ns::op/backward/drop[x]"."""
        return f"{self.point.op}/{self.point.rule}/{self.label}"

    def function(self) -> Function:
        """Return the wrong function, with a state of its own where it has one."""
        return self.operator.change(self)

    def with_results(self, change: Callable[[str, Tensor], Tensor]) -> Function:
        """Return the right function with its results changed, given the name of each."""
        point = self.point
        return lambda *args, **kwargs: map_results(point.function(*args, **kwargs), point.results, change)

    def with_arguments(self, is_meant: IsMeant, change: mistakes.Change) -> Function:
        """Return the right function with the arguments changed that are meant."""

        def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's function
            args, kwargs = map_arguments(args, kwargs, is_meant, change)
            return self.point.function(*args, **kwargs)

        return run


def mutants_of(point: MutationPoint, names: tuple[str, ...] | None = None) -> tuple[Mutant, ...]:
    """Return every mutant of a mutation point, by all operators or those of these names."""
    chosen = [row for row in OPERATORS if point.kind in row.kinds and (names is None or row.name in names)]
    return tuple(Mutant(point, operator, part) for operator in chosen for part in operator.parts(point))


def is_plain(tensor: Tensor) -> bool:
    """Return True if a tensor is an ordinary one, outside every transform."""
    return type(tensor) is Tensor and not is_transforming()


def _results(change: mistakes.Change) -> Callable[[Mutant], Function]:
    """Change what the function returns, tensor by tensor."""
    return lambda mutant: mutant.with_results(lambda name, tensor: change(tensor))


def _incoming(change: mistakes.Change) -> Callable[[Mutant], Function]:
    """Change what comes in, tensor by tensor, before the function sees it."""
    return lambda mutant: mutant.with_arguments(mutant.point.is_incoming, change)


def _inputs(change: mistakes.Change) -> Callable[[Mutant], Function]:
    """Change the arguments of a kernel, tensor by tensor, before it sees them."""
    return lambda mutant: mutant.with_arguments(lambda key: True, change)


def _drop(mutant: Mutant) -> Function:
    return mutant.with_results(lambda name, tensor: torch.zeros_like(tensor) if name == mutant.part else tensor)


def _swap(mutant: Mutant) -> Function:
    return lambda *args, **kwargs: swap_results(mutant.point.function(*args, **kwargs))


def _mean(mutant: Mutant) -> Function:
    point = mutant.point

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's function
        incoming = first_tensor(args, kwargs, point.is_incoming)
        result = point.function(*args, **kwargs)
        return map_results(result, point.results, lambda name, tensor: mistakes.averaged(tensor, incoming))

    return run


def _written_incoming(mutant: Mutant) -> Function:
    """Return a function with right results that doubles the incoming gradients afterwards."""
    point = mutant.point

    def write(tensor: Tensor) -> Tensor:
        if is_plain(tensor) and not tensor.requires_grad:
            tensor.mul_(2)
        return tensor

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's function
        copies, named = map_arguments(args, kwargs, point.is_incoming, torch.clone)
        result = map_results(point.function(*copies, **named), point.results, lambda name, tensor: tensor)
        map_arguments(args, kwargs, point.is_incoming, write)
        return result

    return run


def _written_input(mutant: Mutant) -> Function:
    """Return a function with right results that adds one to the first tensor afterwards."""

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's kernel
        result = mutant.point.function(*args, **kwargs)
        first = first_tensor(args, kwargs, lambda key: True)
        if first is not None and is_plain(first) and first.dtype != torch.bool:
            with torch.no_grad():
                first.add_(1)
        return result

    return run


def _cached(mutant: Mutant) -> Function:
    """Return a function with right results in memory that the next call overwrites."""
    buffers: dict[object, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        if not is_plain(tensor) or (torch.is_grad_enabled() and tensor.requires_grad):
            return tensor
        key = (name, tensor.shape, tensor.dtype, tensor.device)
        buffer = buffers.setdefault(key, torch.empty_like(tensor))
        return buffer.detach().copy_(tensor.detach())

    return mutant.with_results(keep)


def _stale(mutant: Mutant, is_meant: IsMeant) -> Function:
    """Return a function that gets the tensors of the first call that are meant, in all calls of the same sizes."""
    function = mutant.point.function
    first: dict[object, list[Tensor]] = {}

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's function
        now: list[Tensor] = []
        map_arguments(args, kwargs, is_meant, lambda tensor: _noted(now, tensor))
        if not all(is_plain(tensor) for tensor in now):
            return function(*args, **kwargs)
        key = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in now)
        if key not in first:
            first[key] = [tensor.detach().clone() for tensor in now]
            return function(*args, **kwargs)
        kept = iter(first[key])
        args, kwargs = map_arguments(args, kwargs, is_meant, lambda _: next(kept))
        return function(*args, **kwargs)

    return run


def _noted(tensors: list[Tensor], tensor: Tensor) -> Tensor:
    tensors.append(tensor)
    return tensor


def _counted(mutant: Mutant) -> Function:
    """Return a function with a result that is right at first, and grows by a thousandth a call, a hundred times."""
    calls = itertools.count()

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's kernel
        factor = 1 + 1e-3 * (next(calls) % 100)
        return mutant.with_results(lambda name, tensor: _scaled(tensor, factor))(*args, **kwargs)

    return run


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor * factor if tensor.is_floating_point() or tensor.is_complex() else tensor


RULES: tuple[Kind, ...] = ("backward", "jvp")

OPERATORS: tuple[Operator, ...] = (
    Operator("sign", "returns the negative", RULES, _results(torch.neg)),
    Operator("factor", "returns twice what it should", ("backward", "jvp", "kernel"), _results(mistakes.doubled)),
    Operator("drop", "returns zeros in the place of one result", RULES, _drop, lambda point: point.results or ("0",)),
    Operator(
        "swap",
        "returns two gradients of one shape in the wrong order",
        RULES,
        _swap,
        lambda point: ("",) if len(point.results) > 1 else (),
    ),
    Operator("detach", "loses the second derivative", RULES, _results(Tensor.detach)),
    Operator("abs", "takes the absolute value of what comes in", RULES, _incoming(mistakes.magnitude)),
    Operator("mean", "averages where it should sum", ("backward",), _mean),
    Operator("cast", "computes in bfloat16", RULES, _results(mistakes.rounded)),
    Operator("in-place", "writes to the incoming gradient", RULES, _written_incoming),
    Operator("cached", "returns the same memory at every call", RULES, _cached),
    Operator("stale-grad", "keeps what came in at the first call", RULES, lambda it: _stale(it, it.point.is_incoming)),
    Operator(
        "stale-saved",
        "keeps what was saved for the first call",
        RULES,
        lambda it: _stale(it, it.point.is_saved),
        lambda point: ("",) if point.saved else (),
    ),
    Operator("transpose", "returns matrices in the wrong order of memory", RULES, _results(mistakes.transposed)),
    Operator("tail", "leaves the last element unwritten", ("backward", "jvp", "kernel"), _results(mistakes.cut)),
    Operator("noise", "is off by one in a thousand", RULES, _results(mistakes.noisy)),
    Operator("write-input", "writes to its first input", ("kernel",), _written_input),
    Operator("strides", "reads its inputs as if they were contiguous", ("kernel",), _inputs(mistakes.misread)),
    Operator("counter", "depends on how often it was called", ("kernel",), _counted),
)
