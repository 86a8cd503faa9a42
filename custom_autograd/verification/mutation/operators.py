"""OPERATORS, the ways to change a rule or a kernel: each is a row that makes a wrong function of a right one.

A mistake keeps the shape and dtype of what it changes, and stays differentiable where the right function is: only then
does it show whether tests look at numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from custom_autograd.verification.mutation import changes, states
from custom_autograd.verification.mutation.changed_results import map_results, swap_results
from custom_autograd.verification.mutation.points import Function, Kind, MutationPoint


@dataclass(frozen=True, slots=True)
class Operator:
    """One way to change a function.

    Args:
        name: what reports call it.
        purpose: completes "the mistake of a rule that ...".
        kinds: the kinds of functions that it changes.
        change: (mutation point, function, part) -> the wrong function.
        parts: a mutant for each; what "" or a name means is up to the operator.
    """

    name: str
    purpose: str
    kinds: tuple[Kind, ...]
    change: Callable[[MutationPoint, Function, str], Function]
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
        return self.operator.change(self.point, self.point.function, self.part)


def mutants_of(point: MutationPoint, names: tuple[str, ...] | None = None) -> tuple[Mutant, ...]:
    """Return every mutant of a mutation point, by all operators or those of these names."""
    chosen = [row for row in OPERATORS if point.kind in row.kinds and (names is None or row.name in names)]
    return tuple(Mutant(point, operator, part) for operator in chosen for part in operator.parts(point))


def _results(change: changes.Change) -> Callable[[MutationPoint, Function, str], Function]:
    """Return what the function returns, changed tensor by tensor."""

    def wrong(point: MutationPoint, function: Function, part: str) -> Function:
        del part
        return lambda *args, **kwargs: map_results(
            function(*args, **kwargs), point.results, lambda name, tensor: change(tensor)
        )

    return wrong


def _drop(point: MutationPoint, function: Function, part: str) -> Function:
    def change(name: str, tensor: Tensor) -> Tensor:
        return changes.zero(tensor) if name == part else tensor

    return lambda *args, **kwargs: map_results(function(*args, **kwargs), point.results, change)


def _swap(point: MutationPoint, function: Function, part: str) -> Function:
    del point, part
    return lambda *args, **kwargs: swap_results(function(*args, **kwargs))


def _incoming(change: changes.Change) -> Callable[[MutationPoint, Function, str], Function]:
    """Return what comes in, changed tensor by tensor before the function sees it."""

    def wrong(point: MutationPoint, function: Function, part: str) -> Function:
        del part

        def run(*args: object, **kwargs: object) -> object:
            args, kwargs = changes.map_arguments(args, kwargs, point.is_incoming, change)
            return function(*args, **kwargs)

        return run

    return wrong


def _inputs(change: changes.Change) -> Callable[[MutationPoint, Function, str], Function]:
    """Return the arguments of a kernel, changed tensor by tensor before it sees them."""

    def wrong(point: MutationPoint, function: Function, part: str) -> Function:
        del point, part

        def run(*args: object, **kwargs: object) -> object:
            args, kwargs = changes.map_arguments(args, kwargs, lambda key: True, change)
            return function(*args, **kwargs)

        return run

    return wrong


def _mean(point: MutationPoint, function: Function, part: str) -> Function:
    del part

    def run(*args: object, **kwargs: object) -> object:
        incoming = changes.first_tensor(args, kwargs, point.is_incoming)
        result = function(*args, **kwargs)
        return map_results(result, point.results, lambda name, tensor: changes.averaged(tensor, incoming))

    return run


def _names_of_several(point: MutationPoint) -> tuple[str, ...]:
    """Return a mutant for the whole, where there is something to exchange."""
    return ("",) if len(point.results) > 1 else ()


def _saved(point: MutationPoint) -> tuple[str, ...]:
    """Return a mutant for the whole, where what was saved is an argument."""
    return ("",) if point.saved else ()


RULES: tuple[Kind, ...] = ("backward", "jvp")

OPERATORS: tuple[Operator, ...] = (
    Operator("sign", "returns the negative", RULES, _results(changes.negated)),
    Operator("factor", "returns twice what it should", ("backward", "jvp", "kernel"), _results(changes.doubled)),
    Operator("drop", "returns zeros in the place of one result", RULES, _drop, lambda point: point.results or ("0",)),
    Operator("swap", "returns two gradients of one shape in the wrong order", RULES, _swap, _names_of_several),
    Operator("detach", "loses the second derivative", RULES, _results(changes.detached)),
    Operator("abs", "takes the absolute value of what comes in", RULES, _incoming(changes.magnitude)),
    Operator("mean", "averages where it should sum", ("backward",), _mean),
    Operator("cast", "computes in bfloat16", RULES, _results(changes.rounded)),
    Operator("in-place", "writes to the incoming gradient", RULES, states.written_incoming),
    Operator("cached", "returns the same memory at every call", RULES, states.cached),
    Operator("stale-grad", "keeps what came in at the first call", RULES, states.stale_incoming),
    Operator("stale-saved", "keeps what was saved for the first call", RULES, states.stale_saved, _saved),
    Operator("transpose", "returns matrices in the wrong order of memory", RULES, _results(changes.transposed)),
    Operator("tail", "leaves the last element unwritten", ("backward", "jvp", "kernel"), _results(changes.cut)),
    Operator("noise", "is off by one in a thousand", RULES, _results(changes.noisy)),
    Operator("write-input", "writes to its first input", ("kernel",), states.written_input),
    Operator("strides", "reads its inputs as if they were contiguous", ("kernel",), _inputs(changes.misread)),
    Operator("counter", "depends on how often it was called", ("kernel",), states.counted),
)
