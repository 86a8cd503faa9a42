"""Gradients that are not needed are not computed, and leaving them out does not change the others.

An op that runs in the backward is wasted if no needed gradient depends on it. A fused kernel that computes every
gradient at once is read by the needed one, so it is none. Waste is a failure where the backward names `needs`, or is
registered per input, which promises better; elsewhere it is a number in the report.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from custom_autograd.registration.rule_types import Gradient, GradientRule
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import Overload, Watch, arguments_of_overload, name_of_overload
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed, measured
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import TensorFunction, function_of
from custom_autograd.verification.harness.passes import cotangents_of, forward, repeatable_gradients
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target


class Needs(Check):
    """Each input alone against all of them: equal gradients, and no op that only another gradient would read."""

    name = "needs"
    code = "G06"
    group = "saving"
    is_quick = True
    needs = ("gradcheck",)
    purpose = "a gradient that is not needed is not computed, and does not change the others"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return three findings per input: the value of its gradient, also with create_graph, and work for nothing."""
        function = function_of(target, sample)
        if len(function.positions) < 2:
            raise NothingToCheckError("only one input can have a gradient")
        cotangents = cotangents_of(function, function.inputs)
        expected = repeatable_gradients(function, function.inputs, cotangents)
        everything = _record(function, cotangents)
        for position, name in enumerate(function.names):
            part = function.restricted_to([position])
            try:
                alone = _record(part, cotangents)
            except NothingToCheckError:
                continue  # no output depends on this input
            label = f"the gradient of '{name}' where only it is needed"
            difference = find_difference(alone.grads, [expected[position]], names=[label])
            yield (
                PASSED
                if difference is None
                else failed(
                    f"{difference} where all are needed", cause="a gradient is returned in the place of another"
                )
            )
            yield _compare_with_graph(part, cotangents, alone, label)
            yield _waste(target, function, position, everything, alone)


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
    """The ops of a backward, in order, and the gradients; tensors are kept, so that no memory is reused."""

    grads: tuple[Tensor, ...] = ()
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
        live, wasted = set(_memory(self.grads)), []
        for step in reversed(self.steps):
            if step.writes & live:
                live |= step.reads
            elif not step.is_view:
                wasted.append(step)
        return wasted[::-1]

    def last_for(self, position: int) -> NeedsStep | None:
        """Return the op that gave a gradient its values."""
        memory = _memory(self.grads[position : position + 1])
        makers = [step for step in self.steps if step.writes & memory and not step.is_view]
        return makers[-1] if makers else None


def _record(function: TensorFunction, cotangents: Sequence[Tensor]) -> Backward:
    called, found = forward(function, function.inputs), Backward()
    if len(called.outputs) != len(cotangents):
        raise NothingToCheckError("which outputs carry a gradient depends on which inputs need one")
    with Watch(found.add):
        found.grads = called.backward(cotangents)
    return found


def _compare_with_graph(part: TensorFunction, cotangents: Sequence[Tensor], alone: Backward, label: str) -> Finding:
    try:
        found = forward(part, part.inputs).backward(cotangents, create_graph=True)
    except Exception:  # noqa: BLE001 - what a backward raises in grad mode is a finding of the check second_order
        return PASSED
    found = tuple(grad.detach() for grad in found)
    difference = find_difference(found, alone.grads, names=[f"{label}, with create_graph=True"])
    cause = "the backward computes something else in grad mode, or from what needs a gradient"
    return PASSED if difference is None else failed(f"{difference} without it", cause=cause)


def _written(overload: Overload, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """Return the arguments that the op writes to."""
    rows = arguments_of_overload(overload)
    values = {**{row.name: value for row, value in zip(rows, args, strict=False)}, **kwargs}
    return [values[row.name] for row in rows if row.is_mutated and row.name in values]


def _memory(tensors: Sequence[Tensor]) -> frozenset[int]:
    """Return the addresses of the memory of tensors; 0, that of empty ones, is left out."""
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors) - {0}


def _waste(target: Target, function: TensorFunction, position: int, everything: Backward, alone: Backward) -> Finding:
    wasted = alone.wasted()
    name = function.names[position]
    for other, other_name in enumerate(function.names):
        maker = everything.last_for(other)
        if other == position or maker is None or not _is_promised(target, other_name):
            continue
        if not any(map(maker.is_same_as, wasted)):
            continue
        return failed(
            f"the gradient of '{other_name}' is computed ({maker}) although only '{name}' needs one",
            cause=f"the rule does not ask needs.{other_name}",
        )
    return measured(**{f"operations wasted for '{name}' alone": float(len(wasted))})


def _is_promised(target: Target, name: str) -> bool:
    """Return True if a rule of the op takes what is needed."""
    record = record_of(target)
    rules = () if record is None else record.registrations.all_of(GradientRule)
    return any(rule.wants_needs or (isinstance(rule, Gradient) and rule.named == (name,)) for rule in rules)
