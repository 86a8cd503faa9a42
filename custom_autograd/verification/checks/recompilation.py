"""How often torch.compile compiles again: once for another size, never for a call that it has seen."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import GraphCounter
from custom_autograd.verification.calls.call import Call, Outcome, call_as_given, find_change, run, run_twice
from custom_autograd.verification.calls.call_arguments import value_of, with_value
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    first_line,
    root_cause,
    skipped,
)
from custom_autograd.verification.harness.comparison import Difference, judged
from custom_autograd.verification.harness.differentiable import without_refused_gradients
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.sweeps import growths, resized, sizes_of
from custom_autograd.verification.harness.targets import Function, Target
from custom_autograd.verification.harness.tracing import compiled, refusal_of, require_no_generator, takes

FACTORS = (2, 3)
"""The sizes of the second and third call, in those of the sample. Multiples keep what divides a size."""

MORE_FACTORS = (4, 5)
"""Two calls more, where three compiled three graphs: a branch on a size ends there, a size made a number does not."""

MOST_GRAPHS = 2
"""Graphs that torch.compile makes for calls that differ in a size or an integer.

One is dynamic; another is due where sizes differ that were equal, or a size is 1.
"""

MOST_NUMBERS = 2
"""How many numbers among the arguments are varied, one by one: each costs two or three compilations."""


MOST_SECONDS = 10
"""CPU time of the calls of several sizes, s, above which there are no more of them, and no number is varied."""


class Recompilation(Check):
    """Graphs are counted over calls that differ in sizes, and over calls that differ in a number."""

    name = "recompilation"
    code = "C05"
    group = "compiler"
    most_samples = 1
    needs = ("compile", "symbolic")
    purpose = "torch.compile compiles nothing again for another size, nor for a call that it has seen"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for sizes, and one for each number among the arguments."""
        require_no_generator(sample)
        sample, _ = without_refused_gradients(target, sample)
        run_twice(target, call_as_given(sample))
        try:
            begun = time.process_time()
            yield _check_sizes(target, sample)
            spent = time.process_time() - begun
            for name, value, calls in _varied_numbers(target, sample):
                if spent > MOST_SECONDS:
                    yield skipped(f"'{name}' is not varied: other sizes took {spent:.0f} CPU-seconds to compile")
                else:
                    yield _check_number(target, name, value, calls)
        except NothingToCheckError as reason:
            yield skipped(str(reason))
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises is what there is to report
            refusal = refusal_of(target, error)
            text = f"compiling for a call of another size or number raises {first_line(root_cause(error))}"
            yield failed(text) if refusal is None else skipped(f"compiling raises {refusal}")


class Trial:
    """A function compiled for itself, with a count of its graphs.

    Args:
        target: what is compared with eager.
        function: what is compiled, such as the target's call.
        is_dynamic: whether sizes and integers are symbols from the first call on; else they are from the second on.
    """

    def __init__(self, target: Target, function: Function, *, is_dynamic: bool = True) -> None:
        self._target = target
        self._counter = GraphCounter()
        self._function = compiled(function, backend=self._counter, fullgraph=True, dynamic=is_dynamic or None)

    @property
    def graphs(self) -> int:
        """Return how many graphs were compiled."""
        return self._counter.graphs

    def run(self, call: Sample) -> Difference | None:
        """Return the first difference from eager, or None.

        Raises:
            NothingToCheckError: the call raises in eager as well, such as for a matrix that has no inverse.
        """
        given = call_as_given(call)
        expected = self._in_eager(given)
        difference = find_change(run(self._target, self._function, given), expected)
        if difference is None:
            return None
        moved = run(self._target, self._target.call, given.map(_rounded_otherwise))
        return difference if find_change(moved, expected) is None else None

    def _in_eager(self, call: Call) -> Outcome:
        try:
            return run(self._target, self._target.call, call)
        except Exception as error:
            raise NothingToCheckError(f"another size or number raises in eager, too: {first_line(error)}") from error

    def find_guard(self, call: Sample) -> str | None:
        """Return the condition that fails for a call, if it needs another graph."""
        with torch.compiler.set_stance("fail_on_recompile"):
            try:
                self.run(call)
            except RuntimeError as error:
                return _guard_in(str(error), [row.name for row in self._target.arguments])
        return None


def _rounded_otherwise(tensor: Tensor) -> Tensor:
    """Return the numbers moved by a few roundings: where the results change with that, there is nothing to compare."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
        return tensor
    noise = torch.randn_like(tensor.detach())
    return tensor.detach() * (1 + 4 * torch.finfo(tensor.dtype).eps * noise)


def _guard_in(text: str, names: Sequence[str]) -> str:
    """Return the guard in what torch reports, such as "x.size()[0] == 4"."""
    rows = [line.strip().removeprefix("- ") for line in text.splitlines() if line.strip().startswith("- ")]
    guard = rows[0].split("  #")[0].partition(": ")[2].strip() if rows else "one that torch does not name"
    for position, name in enumerate(names):
        guard = guard.replace(f"args[{position}]", name)
    return guard


def _check_sizes(target: Target, sample: Sample) -> Finding:
    calls = _larger(target, sample, FACTORS)
    if not calls:
        return skipped("the op takes no sizes but those of the sample")
    trial, begun = Trial(target, target.call), time.process_time()
    for call in [sample, *calls]:
        difference = trial.run(call)
        if difference is not None:
            return judged(difference, f"compiled for several sizes, on {call}: {{}} in eager")
    again = _check_again(trial, [sample, *calls])
    if trial.graphs <= MOST_GRAPHS or again is not PASSED:
        return again
    spent = time.process_time() - begun
    if spent > MOST_SECONDS:
        return skipped(f"three sizes compile three graphs, in {spent:.0f} CPU-seconds: more are not tried")
    more, before = _larger(target, sample, MORE_FACTORS), trial.graphs
    for call in more:
        trial.run(call)
    if len(more) < len(MORE_FACTORS) or trial.graphs < before + len(more):
        return PASSED
    unseen, count = _larger(target, sample, (7,)), trial.graphs
    guard = (trial.find_guard(unseen[0]) if unseen else None) or "one that torch does not name"
    text = f"{count} sizes compile {count} graphs instead of one for all; the guard that fails: {guard}"
    if target.overload is None:
        return skipped(f"{text}; a Python function may look at sizes")
    if _is_of_reference(target, [sample, *calls, *more]):
        return skipped(f"{text}; an operation of PyTorch in the reference does, of which the gradients are derived")
    return failed(text, cause="the fake kernel or a rule makes a number of a size")


def _is_of_reference(target: Target, calls: Sequence[Sample]) -> bool:
    """Return True if no rule makes gradients, and the reference, compiled by itself, has a graph for each call too."""
    record = record_of(target)
    if target.reference is None or record is None or record.registrations.gradient_rules():
        return False
    trial = Trial(target, target.reference)
    for call in calls:
        trial.run(call)
    return trial.graphs >= len(calls)


def _larger(target: Target, sample: Sample, factors: Sequence[int]) -> list[Sample]:
    """Return the sample grown by each factor, in all its sizes or else in one; none if the op takes them in no way."""
    ways = zip(*(growths(sample, factor) for factor in factors), strict=True)
    for way in ways:
        calls = [resized(sample, sizes) for sizes in way]
        if all(takes(target, call, sample) for call in calls):
            return calls
    return []


def _varied_numbers(target: Target, sample: Sample) -> Iterator[tuple[str, object, list[Sample]]]:
    """Yield the first numbers among the arguments by name, each with the calls that differ in it."""
    names = [row.name for row in target.arguments]
    found, kept = 0, sizes_of(sample)  # another number would no longer be the size of what it counts
    for name in [*names[: len(sample.args)], *(name for name in sample.kwargs if name in names)]:
        value = value_of(target, sample, name)
        is_size = isinstance(value, int) and value in kept
        calls = [] if is_size else [with_value(target, sample, name, other) for other in _values(value)]
        if calls and found < MOST_NUMBERS and all(takes(target, call, sample) for call in calls):
            found += 1
            yield name, value, calls


def _values(value: object) -> list[int | float]:
    """Return values of a number: 0 and 1, which torch.compile never varies, come at most once.

    Graphs are counted over three integers. Each float has a graph of its own, so that two show what is kept of one.
    """
    if isinstance(value, float):
        return [value, 0.75 * value] if value else []
    if isinstance(value, int) and not isinstance(value, bool):
        return [value, max(value, 1) + 1, max(value, 1) + 2]
    return []


def _check_number(target: Target, name: str, value: object, calls: Sequence[Sample]) -> Finding:
    trial = Trial(target, target.call, is_dynamic=not isinstance(value, float))  # torch makes a constant of each float
    for call in calls:
        difference = trial.run(call)
        if difference is not None:
            return failed(f"compiled for several values of '{name}', on {call}: {difference} in eager")
    is_counted = trial.graphs > MOST_GRAPHS and not isinstance(value, float)
    due = _due(target, calls) if is_counted else None
    if due is not None and trial.graphs > due:
        text = f"{len(calls)} values of '{name}' compile {trial.graphs} graphs, where the reference needs {due}"
        return failed(text, cause=_why_constant(target, name))
    return _check_again(trial, calls)


def _why_constant(target: Target, name: str) -> str:
    record = record_of(target)
    if record is not None and re.search(rf"\bint {re.escape(name)}\b", record.declaration.schema.text):
        return f"the schema says 'int {name}', which compiled code makes a constant of: write 'SymInt {name}'"
    return f"the fake kernel or a rule makes a constant of '{name}'"


def _due(target: Target, calls: Sequence[Sample]) -> int | None:
    """Return how many graphs are due for integers: those of the reference; None without one.

    For floats this is unknown: torch.compile itself makes a constant of each that an op of the dispatcher takes.
    """
    if target.reference is None:
        return None
    trial = Trial(target, target.reference)
    for call in calls:
        trial.run(call)
    return max(MOST_GRAPHS, trial.graphs)


def _check_again(trial: Trial, calls: Sequence[Sample]) -> Finding:
    """Check that calls that were compiled before are not compiled again."""
    for call in calls:
        guard = trial.find_guard(call)
        if guard is not None:
            text = f"{call} was compiled before and would be compiled again; the guard that fails: {guard}"
            return failed(text, cause="a value outside the arguments changes from call to call")
    return PASSED
