"""torch.func's grad, vmap and jvp give the same inside torch.compile as they do in eager."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.compiler import COMPILES_RULES_OF_FUNCTIONS
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
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.dispatching import takes_instances
from custom_autograd.verification.harness.passes import (
    TensorCall,
    fresh,
    has_data_dependent_size,
    refusal_of,
    require_no_generator,
)
from custom_autograd.verification.harness.records import result_names
from custom_autograd.verification.harness.targets import Target

Transformed = Callable[..., object]
"""A target under a transform: its tensors in, tensors out."""


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
        if has_data_dependent_size(target, sample):
            raise NothingToCheckError("the size of its results depends on the data")
        names = _names(target, sample, inputs)
        call = TensorCall(target, sample)
        for name, transformed, arguments in _transforms(call, inputs):
            try:
                expected = _results(transformed, arguments)
                again = _results(transformed, arguments)
            except Exception as error:  # noqa: BLE001 - other checks tell what a transform raises in eager
                yield skipped(f"{name}: it does not run in eager: {find_refusal(error) or first_line(error)}")
                continue
            if find_difference(again, expected) is not None:
                raise NothingToCheckError("the op gives other results from one call to the next")
            yield _compiled(target, name, transformed, arguments, expected, names[name])


def _names(target: Target, sample: Sample, inputs: Sequence[Tensor]) -> dict[str, list[str]]:
    """Return what to call the results of each transform."""
    leaves = [leaf for leaf in sample.leaves() if can_have_gradient(leaf.tensor)]
    outputs = TensorCall(target, sample)(*inputs)
    named = zip(result_names(target, sample, len(outputs)), outputs, strict=True)
    able = [name for name, y in named if can_have_gradient(y)]
    grads = [f"gradient of '{target.name_of(leaf)}'" for leaf in leaves]
    return {"grad": grads, "vmap": able, "jvp": [*able, *(f"tangent of {name}" for name in able)]}


def _transforms(call: TensorCall, inputs: Sequence[Tensor]) -> Iterator[tuple[str, Transformed, Sequence[Tensor]]]:
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


def _compiled(
    target: Target,
    name: str,
    transformed: Transformed,
    arguments: Sequence[Tensor],
    expected: Sequence[Tensor],
    names: Sequence[str],
) -> Finding:
    function = torch.compile(fresh(transformed), backend="eager", fullgraph=True, dynamic=False)
    try:
        found = _results(lambda *tensors: function(tensors, {}), arguments)
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is what there is to report
        refusal = refusal_of(target, error)
        text = f"{name}: compiling raises {first_line(root_cause(error))}"
        return failed(text) if refusal is None else skipped(f"{name}: compiling raises {refusal}")
    difference = find_difference(found, expected, names=names)
    return PASSED if difference is None else difference.failed(f"compiled {name}: {difference} in eager")


def _results(function: Transformed, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors that come back, with the same random numbers each time."""
    RandomState.seeded(0).restore()
    return Sample(function(*arguments)).tensors()
