"""Compiled with torch.compile(fullgraph=True), values and gradients equal those of eager."""

import types
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from custom_autograd.checks.base import PASSED, Check, Finding, failed, find_refusal, first_line, root_cause, skipped
from custom_autograd.checks.comparison import find_difference
from custom_autograd.checks.differentiable import can_have_gradient, without_refused_gradients
from custom_autograd.checks.targets import Function, Target
from custom_autograd.core.samples import Sample


class Compile(Check):
    """The aot_eager backend: everything that torch.compile does to an op, without generating code."""

    name = "compile"
    code = "C04"
    group = "compiler"
    purpose = "compiled without a graph break, values and gradients equal eager ones"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding for static shapes, one for dynamic ones."""
        sample, refusal = without_refused_gradients(target, sample)
        if refusal is not None:
            yield skipped(refusal)
        cotangents, expected = _run(target, sample, target.call, ())
        for is_dynamic in (False, True):
            label = "dynamic shapes" if is_dynamic else "static shapes"
            function = torch.compile(_fresh(target.call), backend="aot_eager", fullgraph=True, dynamic=is_dynamic)
            try:
                _, found = _run(target, sample, function, cotangents)
            except Exception as error:  # noqa: BLE001 - whatever the compiler raises is what there is to report
                refusal = find_refusal(error)
                if refusal is not None:
                    yield skipped(f"compiling raises {refusal}")
                    return
                yield failed(f"{label}: compiling raises {first_line(root_cause(error))}")
                continue
            names = [name for name, _ in expected]
            difference = find_difference([x for _, x in found], [x for _, x in expected], names=names)
            yield PASSED if difference is None else failed(f"{label}: {difference} in eager")


def _fresh(call: Function) -> Function:
    """A function with a code object of its own: torch.compile keeps its results, and limits, per code object."""

    def run(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return call(*args, **kwargs)

    return types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def _run(
    target: Target, sample: Sample, function: Function, cotangents: Sequence[Tensor]
) -> tuple[Sequence[Tensor], list[tuple[str, Tensor]]]:
    """The outputs, written inputs and gradients by name; and the cotangents, made where none are given."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in sample.tensors()]
    is_written = [target.argument_of(leaf).is_mutated for leaf in sample.leaves()]
    values = [x.clone() if written else x for x, written in zip(leaves, is_written, strict=True)]
    call = sample.with_tensors(values)
    result = function(*call.args, **call.kwargs) if function is target.call else function(call.args, call.kwargs)
    outputs = Sample(result).tensors()
    results = [(f"output {i}", y.detach()) for i, y in enumerate(outputs)]
    results += [
        (f"'{target.name_of(leaf)}' after the call", x.detach())
        for leaf, x, written in zip(sample.leaves(), values, is_written, strict=True)
        if written
    ]
    able = [y for y in outputs if y.requires_grad and can_have_gradient(y)]
    cotangents = cotangents or [torch.randn_like(y).detach() for y in able]
    return cotangents, results + _gradients(target, sample, leaves, able, cotangents)


def _gradients(
    target: Target, sample: Sample, leaves: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[tuple[str, Tensor]]:
    able = [(leaf, x) for leaf, x in zip(sample.leaves(), leaves, strict=True) if x.requires_grad]
    if not outputs or not able:
        return []
    grads = torch.autograd.grad(outputs, [x for _, x in able], cotangents, allow_unused=True)
    return [
        (f"gradient of '{target.name_of(leaf)}'", torch.zeros_like(x) if g is None else g)
        for (leaf, x), g in zip(able, grads, strict=True)
    ]
