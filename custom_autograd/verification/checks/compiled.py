"""Compiled code gives what eager code gives: a call, its backward, torch.func's transforms, and an exported program."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from custom_autograd.capabilities.inlining import without_inlining
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.compiler import COMPILES_RULES_OF_FUNCTIONS
from custom_autograd.torch_private.verification import compiled_backward
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.calls.call import Outcome, begin, call_as_given, find_change, run, run_twice
from custom_autograd.verification.harness.base import (
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    root_cause,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_difference, judged, require_same
from custom_autograd.verification.harness.differentiable import can_have_gradient, without_refused_gradients
from custom_autograd.verification.harness.dispatching import takes_instances
from custom_autograd.verification.harness.records import record_of, result_names
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import (
    BACKEND,
    TensorCall,
    compiled,
    data_dependence,
    judge_raised,
    refusal_of,
    require_no_generator,
)


class Compile(Check):
    """The aot_eager backend: everything that torch.compile does to an op, without generating code."""

    name = "compile"
    code = "C04"
    group = "compiler"
    most_samples = 2
    purpose = "compiled without a graph break, values and gradients equal eager ones"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for static shapes, one for dynamic ones; two of each for an op that is inlined."""
        require_no_generator(sample)
        sample, refusal = without_refused_gradients(target, sample)
        if refusal is not None:
            yield skipped(refusal)
        call = call_as_given(sample)
        expected = run_twice(target, call)
        for label, is_dynamic, is_whole in _ways(target):
            function = compiled(target.call, backend=BACKEND, fullgraph=True, dynamic=is_dynamic)
            with without_inlining() if is_whole else nullcontext():
                finding = _look(label, f"{label}: compiling", partial(run, target, function, call), expected)
            yield finding


def _look(label: str, action: str, make: Callable[[], Outcome], expected: Outcome) -> Finding:
    """Return a finding on what compiled code gives; whatever the compiler raises is what there is to report."""
    try:
        found = make()
    except Exception as error:  # noqa: BLE001 - see above
        return judge_raised(f"{action} raises", error)
    return judged(find_change(found, expected), f"{label}: {{}} in eager")


def _ways(target: Target) -> Iterator[tuple[str, bool, bool]]:
    """Yield what a report calls a way to compile, whether shapes are dynamic, and whether the op stays one node."""
    record = record_of(target)
    is_inlined = record is not None and record.is_inlined
    for label, is_dynamic in (("static shapes", False), ("dynamic shapes", True)):
        yield label + is_inlined * ", inlined", is_dynamic, False
        if is_inlined:
            yield f"{label}, not inlined", is_dynamic, True


class CompiledAutograd(Check):
    """The op runs in eager; its backward is traced through the rules when it runs, and compiled as a whole."""

    name = "compiled_autograd"
    code = "C07"
    group = "compiler"
    most_samples = 1
    needs = ("compile",)
    purpose = "compiled autograd gives the gradients of eager"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding."""
        sample, refusal = without_refused_gradients(target, sample)
        call = call_as_given(sample)
        expected = run_twice(target, call)
        if not call.needs or not begin(target, target.call, call).able():
            yield skipped(refusal or "no output carries a gradient")
            return
        with compiled_backward():
            finding = _look(
                "compiled backward", "the compiled backward", partial(run, target, target.call, call), expected
            )
        yield finding


class CompiledTransforms(Check):
    """One compilation each, of a transform that works in eager."""

    name = "compiled_transforms"
    code = "C08"
    group = "compiler"
    most_samples = 1
    needs = ("compile", "vmap", "gradcheck", "forward_mode")
    purpose = "grad, vmap and jvp of torch.func give the same compiled as in eager"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason if torch.compile leaves out the rules of a Function under a transform: numbers are wrong."""
        if target.overload is not None and takes_instances(target.overload):
            return "torch.compile cannot close over an instance of a registered class under a transform"
        is_function = isinstance(target.subject, type) and issubclass(target.subject, torch.autograd.Function)
        if COMPILES_RULES_OF_FUNCTIONS:
            return None
        return "torch.compile leaves out the rules of a torch.autograd.Function in torch.func" if is_function else None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per transform.

        Those that are refused, in eager or by the compiler, are skipped by name.
        """
        inputs = tuple(tensor.detach().clone() for tensor in sample.tensors())
        if not any(can_have_gradient(tensor) and tensor.numel() for tensor in inputs):
            raise NothingToCheckError("no tensor of the sample can have a gradient")
        require_no_generator(sample)
        has_size, has_number = data_dependence(target, sample)
        if has_size:
            raise NothingToCheckError("the size of its results depends on the data")
        names = _names(target, sample, inputs)
        for name, transformed, arguments in _transforms(TensorCall(target, sample), inputs):
            if name == "vmap" and has_number:
                yield skipped("vmap: a number among its results depends on the data, and may differ between samples")
                continue
            try:
                expected, again = _seeded(transformed, arguments), _seeded(transformed, arguments)
            except Exception as error:  # noqa: BLE001 - other checks tell what a transform raises in eager
                yield skipped(f"{name}: it does not run in eager: {find_refusal(error) or first_line(error)}")
                continue
            require_same(again, expected)
            try:
                found = _seeded(compiled(transformed, backend="eager", fullgraph=True, dynamic=False), arguments)
            except Exception as error:  # noqa: BLE001 - whatever the compiler raises is what there is to report
                refusal = refusal_of(target, error)
                text = f"{name}: compiling raises {refusal or first_line(root_cause(error))}"
                yield failed(text) if refusal is None else skipped(text)
                continue
            yield judged(find_difference(found, expected, names=names[name]), f"compiled {name}: {{}} in eager")


def _names(target: Target, sample: Sample, inputs: Sequence[Tensor]) -> dict[str, list[str]]:
    """Return what to call the results of each transform."""
    leaves = [leaf for leaf in sample.leaves() if can_have_gradient(leaf.tensor)]
    outputs = TensorCall(target, sample)(*inputs)
    named = zip(result_names(target, sample, len(outputs)), outputs, strict=True)
    able = [name for name, y in named if can_have_gradient(y)]
    grads = [f"gradient of '{target.name_of(leaf)}'" for leaf in leaves]
    return {"grad": grads, "vmap": able, "jvp": [*able, *(f"tangent of {name}" for name in able)]}


def _transforms(
    call: TensorCall, inputs: Sequence[Tensor]
) -> Iterator[tuple[str, Callable[..., object], Sequence[Tensor]]]:
    """Yield the name of each transform, the target under it, and its arguments."""
    positions = [position for position, x in enumerate(inputs) if can_have_gradient(x)]
    chosen = [inputs[position] for position in positions]

    def inner(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = list(inputs)
        for position, tensor in zip(positions, tensors, strict=True):
            values[position] = tensor
        return tuple(y for y in call(*values) if can_have_gradient(y))

    def number(*tensors: Tensor) -> Tensor:
        return torch.stack([(y * y.conj()).real.sum() for y in inner(*tensors)]).sum()

    if not any(x.is_complex() for x in chosen):
        yield "grad", torch.func.grad(number, tuple(range(len(chosen)))), chosen
    yield "vmap", torch.func.vmap(inner), [torch.stack([x, x * 0.9]) for x in chosen]
    yield "jvp", lambda *tensors: torch.func.jvp(inner, tensors, tensors), chosen


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
