"""Gradients that are not needed are not computed, and leaving them out does not change the others.

An op that runs in the backward is wasted if no needed gradient depends on it. A fused kernel that computes every
gradient at once is read by the needed one, so it is none. Waste is a failure where the backward names `needs`, or is
registered per input, which promises better; elsewhere it is a number in the report.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from custom_autograd.registration.rule_types import Gradient, GradientRule
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import Overload, Watch, arguments_of_overload, name_of_overload
from custom_autograd.verification.calls.backward_ways import PLAIN, WITH_GRAPH
from custom_autograd.verification.calls.call import Call, begin, call_in_double, cotangents_of
from custom_autograd.verification.calls.case import Verdict
from custom_autograd.verification.calls.changes import NEEDS
from custom_autograd.verification.calls.row import WayRow
from custom_autograd.verification.harness.base import Finding, failed, measured
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target


class Needs(WayRow):
    """Some inputs against all of them: equal gradients, and no op that only another gradient would read."""

    name = "needs"
    code = "G06"
    group = "saving"
    is_quick = True
    needs = ("gradcheck",)
    purpose = "a gradient that is not needed is not computed, and does not change the others"

    stages = (NEEDS,)
    ways = (PLAIN, WITH_GRAPH)
    nothing = "only one input can have a gradient"

    def cause_of(self, verdict: Verdict) -> str:
        """Return why a gradient is another one where the others are not needed."""
        return "a gradient is returned in the place of another" if verdict.case.way is PLAIN else ""

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for each choice of inputs, with and without a graph; then one for each, on wasted work."""
        yield from super().run(target, sample)
        call = call_in_double(target, sample)
        everything = _record(target, call)
        for position in sorted(call.needs):
            alone = _record(target, replace(call, needs=frozenset({position})))
            if alone.able == everything.able:  # which outputs carry a gradient may depend on which inputs need one
                (name,) = alone.grads
                yield _waste(target, name, everything, alone)


@dataclass(frozen=True, slots=True)
class NeedsStep:
    """One op that ran: what it is, which memory it read and wrote, what it made, and whether it computes or only views.

    What it made is looked at when the backward has ended, so later writes are in it.
    """

    name: str
    reads: frozenset[int]
    writes: frozenset[int]
    made: tuple[Tensor, ...]
    is_view: bool

    def __str__(self) -> str:
        """Return the op and the shapes of its results."""
        return f"{self.name} of shape {', '.join(str(tuple(tensor.shape)) for tensor in self.made)}"

    def is_same_as(self, other: "NeedsStep") -> bool:
        """Return True if both did the same: a reference that runs again may have ops of the same name and shape."""
        return str(self) == str(other) and find_difference(self.made, other.made) is None


@dataclass(slots=True)
class Backward:
    """The ops of a backward, in order, and the gradients by name; tensors are kept, so that no memory is reused."""

    able: list[str] = field(default_factory=list)
    grads: Mapping[str, Tensor] = field(default_factory=dict)
    steps: list[NeedsStep] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)

    def add(self, overload: Overload, args: Sequence[object], kwargs: Mapping[str, object], found: object) -> None:
        """Record one op."""
        read, made = Sample(*args, **kwargs).tensors(), Sample(found).tensors()
        self.kept += [read, made]
        written = _memory(Sample(*_written(overload, args, kwargs)).tensors())
        reads, results = _memory(read), _memory(made)
        is_view = not written and results <= reads
        self.steps.append(NeedsStep(name_of_overload(overload), reads, results | written, tuple(made), is_view))

    def wasted(self) -> list[NeedsStep]:
        """Return the ops on which no gradient depends."""
        live, wasted = set(_memory(self.grads.values())), []
        for step in reversed(self.steps):
            if step.writes & live:
                live |= step.reads
            elif not step.is_view:
                wasted.append(step)
        return wasted[::-1]

    def last_for(self, name: str) -> NeedsStep | None:
        """Return the op that gave a gradient its values."""
        memory = _memory([self.grads[name]])
        makers = [step for step in self.steps if step.writes & memory and not step.is_view]
        return makers[-1] if makers else None


def _record(target: Target, call: Call) -> Backward:
    begun = begin(target, target.call, call)
    found, cotangents = Backward(begun.able()), cotangents_of(call, begun)
    with Watch(found.add):
        found.grads = begun.backward(cotangents)
    return found


def _written(overload: Overload, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """Return the arguments that the op writes to."""
    rows = arguments_of_overload(overload)
    values = {**{row.name: value for row, value in zip(rows, args, strict=False)}, **kwargs}
    return [values[row.name] for row in rows if row.is_mutated and row.name in values]


def _memory(tensors: Iterable[Tensor]) -> frozenset[int]:
    """Return the addresses of the memory of tensors; 0, that of empty ones, is left out."""
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors) - {0}


def _waste(target: Target, name: str, everything: Backward, alone: Backward) -> Finding:
    wasted, needed = alone.wasted(), name.removeprefix("gradient of ")
    for other in everything.grads:
        maker, argument = everything.last_for(other), other.removeprefix("gradient of ").strip("'")
        if other == name or maker is None or not _is_promised(target, argument):
            continue
        if any(map(maker.is_same_as, wasted)):
            text = f"the {other} is computed ({maker}) although only {needed} needs one"
            return failed(text, cause=f"the rule does not ask needs.{argument}")
    return measured(**{f"operations wasted for {needed} alone": float(len(wasted))})


def _is_promised(target: Target, name: str) -> bool:
    """Return True if a rule of the op takes what is needed."""
    record = record_of(target)
    rules = () if record is None else record.registrations.all_of(GradientRule)
    return any(rule.wants_needs or (isinstance(rule, Gradient) and rule.named == (name,)) for rule in rules)
