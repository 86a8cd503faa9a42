"""torch.export gives a program with the op in it, which gives the op's results, also after it was saved and loaded."""

import io
from collections.abc import Iterable

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
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
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.dispatching import takes_instances
from custom_autograd.verification.harness.passes import TensorCall, is_limit_of_torch
from custom_autograd.verification.harness.records import result_names
from custom_autograd.verification.harness.targets import Target


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
        expected = _seeded(call, inputs)
        if find_difference(_seeded(call, inputs), expected) is not None:
            raise NothingToCheckError("the op gives other results from one call to the next")
        for stage, make in (("exported", _exported), ("saved and loaded", _loaded)):
            try:
                found = _seeded(make(call, inputs).module(), inputs)
            except Exception as error:  # noqa: BLE001 - whatever torch.export raises is what there is to report
                text = f"{stage}: the program raises {first_line(root_cause(error))}"
                is_honest = find_refusal(error) is not None or is_limit_of_torch(error)
                yield skipped(text) if is_honest else failed(text)
                return
            difference = find_difference(found, expected, names=result_names(target, sample, len(expected)))
            yield PASSED if difference is None else difference.failed(f"{stage}: {difference} in eager")


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


def _seeded(function: "TensorCall | torch.nn.Module", inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the results of a call, with the same random numbers each time."""
    RandomState.seeded(0).restore()
    with torch.no_grad():
        results: tuple[Tensor, ...] = function(*inputs)
    return tuple(results)
