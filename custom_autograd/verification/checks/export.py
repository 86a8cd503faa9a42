"""The program that torch.export makes of a call gives what the call gives, as exported and as loaded again."""

import io
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.harness.base import Check, Finding, NothingToCheckError
from custom_autograd.verification.harness.comparison import find_difference, judged, require_same
from custom_autograd.verification.harness.dispatching import takes_instances
from custom_autograd.verification.harness.records import result_names
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import TensorCall, judge_raised


class Export(Check):
    """The program runs as exported, and as loaded again from what torch.export.save wrote."""

    name = "export"
    code = "C06"
    group = "compiler"
    most_samples = 1
    needs = ("fake",)
    purpose = "torch.export takes the op, and a program that was saved and loaded gives its results"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless it is an op of the dispatcher: anything else is traced through."""
        if target.overload is None:
            return "only an op of the dispatcher stays one in a program"
        if takes_instances(target.overload):
            return "torch.export.load cannot read an instance of a registered class"
        return None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for the program, one for the program after it was saved and loaded."""
        inputs = tuple(tensor.detach().clone() for tensor in sample.tensors())
        if not inputs:
            raise NothingToCheckError("the sample has no tensor")
        call = TensorCall(target, sample)
        with torch.no_grad():
            expected = _seeded(call, inputs)
            require_same(_seeded(call, inputs), expected)
        names = result_names(target, sample, len(expected))
        # torch.export.load does not read a program without results
        for stage, make in (("exported", _exported), ("saved and loaded", _loaded))[: 1 + bool(expected)]:
            try:
                with torch.no_grad():
                    found = _seeded(make(call, inputs).module(), inputs)
            except Exception as error:  # noqa: BLE001 - whatever torch.export raises is what there is to report
                yield judge_raised(f"{stage}: the program raises", error)
                return
            yield judged(find_difference(found, expected, names=names), f"{stage}: {{}} in eager")


class Program(torch.nn.Module):
    """A call as a module, which is what torch.export takes."""

    def __init__(self, call: TensorCall) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return what the call returns."""
        return self.call(*tensors)


def _exported(call: TensorCall, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    return torch.export.export(Program(call), inputs, strict=False)


def _loaded(call: TensorCall, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    buffer = io.BytesIO()
    torch.export.save(_exported(call, inputs), buffer)
    buffer.seek(0)
    return torch.export.load(buffer)


def _seeded(function: Callable[..., object], arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors that come back, with the same random numbers each time."""
    RandomState.seeded(0).restore()
    return Sample(function(*arguments)).tensors()
