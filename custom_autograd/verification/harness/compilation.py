"""One call of a target, eager or compiled, as results by name: its outputs, the inputs it wrote to, and gradients."""

import contextlib
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.conversions import GENERATOR_IN_GRAPH
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import fake_mode
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.harness.base import NothingToCheckError, find_refusal, first_line, root_cause
from custom_autograd.verification.harness.comparison import Difference, find_difference
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.domain import is_within_domain
from custom_autograd.verification.harness.origins import rule_behind
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.result_names import output_names
from custom_autograd.verification.harness.targets import Function, Target, call_on

BACKEND = "aot_eager"
"""Everything that torch.compile does to an op, without generating code."""

NamedResults: TypeAlias = list[tuple[str, Tensor]]
"""Results of a call with what a message calls them."""


@dataclass(frozen=True, slots=True)
class TensorCall:
    """A target as a function of the tensors of a sample, which it leaves as they are."""

    target: Target
    sample: Sample

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, then the values of the inputs that were written to."""
        leaves = self.sample.leaves()
        written = [self.target.argument_of(leaf).is_mutated for leaf in leaves]
        values = [x.clone() if is_written else x for x, is_written in zip(tensors, written, strict=True)]
        outputs = call_on(self.target.call, self.sample.with_tensors(values))
        return outputs + tuple(x for x, is_written in zip(values, written, strict=True) if is_written)


def require_no_generator(sample: Sample) -> None:
    """Raise NothingToCheckError if a call is given a generator, which torch.compile cannot trace."""
    if has_generator(sample):
        raise NothingToCheckError(GENERATOR_IN_GRAPH)


def eager_results(target: Target, sample: Sample) -> tuple[NamedResults, Sequence[Tensor]]:
    """Return the results of the plain call, and the cotangents of its gradients.

    Raises:
        NothingToCheckError: the same call gives other results the second time, so that nothing compares with it.
    """
    first, cotangents = run(target, sample, target.call)
    again, _ = run(target, sample, target.call, cotangents)
    if find_change(again, first) is not None:
        raise NothingToCheckError("the op gives other results from one call to the next")
    return first, cotangents


def run(
    target: Target, sample: Sample, function: Function, cotangents: Sequence[Tensor] = ()
) -> tuple[NamedResults, Sequence[Tensor]]:
    """Return the results of a call, and the cotangents, made where none are given.

    Random numbers are the same each time.
    """
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in sample.tensors()]
    is_written = [target.argument_of(leaf).is_mutated for leaf in sample.leaves()]
    values = [x.clone() if written else x for x, written in zip(leaves, is_written, strict=True)]
    call = sample.with_tensors(values)
    RandomState.seeded(0).restore()
    result = function(*call.args, **call.kwargs) if function is target.call else function(call.args, call.kwargs)
    outputs = Sample(result).tensors()
    results = [(name, y.detach()) for name, y in zip(output_names(target, len(outputs)), outputs, strict=True)]
    results += [
        (f"'{target.name_of(leaf)}' after the call", x.detach())
        for leaf, x, written in zip(sample.leaves(), values, is_written, strict=True)
        if written
    ]
    able = [y for y in outputs if y.requires_grad and can_have_gradient(y)]
    cotangents = cotangents or [torch.randn_like(y).detach() for y in able]
    return results + _gradients(target, sample, leaves, able, cotangents), cotangents


def find_change(found: NamedResults, expected: NamedResults) -> Difference | None:
    """Return the first difference between the results of two calls, or None."""
    names = [name for name, _ in expected]
    return find_difference([x for _, x in found], [x for _, x in expected], names=names)


def fresh(call: Function) -> Function:
    """Return a function with a code object of its own: torch.compile keeps its results, and limits, per code object."""

    def run(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return call(*args, **kwargs)

    return types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def is_declared_here(target: Target) -> bool:
    """Return True if the target is an op of this package, whose every rule is to work in every transform."""
    return record_of(target) is not None


def refusal_of(target: Target, error: Exception) -> str | None:
    """Return why an op may raise here without a fault: it says so, or torch does; None if it is a fault.

    Torch does of what was not declared here, and of what writes to an input, which few transforms allow.
    """
    refusal = find_refusal(error, is_optional=True)
    if refusal is None and (not is_declared_here(target) or target.is_mutating or is_limit_of_torch(error)):
        return first_line(root_cause(error))
    return refusal


def has_data_dependent_size(target: Target, sample: Sample) -> bool:
    """Return True if the fake kernel returns a size that is unknown before the op runs."""
    with torch.no_grad(), contextlib.suppress(Exception), fake_mode() as to_fake:
        outputs = call_on(target.call, sample.map(lambda tensor: to_fake(tensor.detach())))
        return any(not isinstance(size, int) for output in outputs for size in output.shape)
    return False


def is_limit_of_torch(error: Exception) -> bool:
    """Return True if torch.compile says that it takes no op of this kind, or that the error is its own."""
    if rule_behind(error):
        return False
    text = f"{type(error).__name__} {type(root_cause(error)).__name__}: {error}"
    return any(phrase in text for phrase in LIMITS_OF_TORCH)


LIMITS_OF_TORCH = (
    "INTERNAL ASSERT FAILED",
    "InternalTorchDynamoError",
    "Unsupported custom jvp",  # a torch.autograd.Function that has one
    "Attempted to call function marked as skipped",  # a function of torch itself, written in C++
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "Cannot call storage_offset() on tensor with symbolic sizes/strides",
)
"""What torch.compile says where no op of this kind can be compiled (found in torch 2.13)."""


def takes(target: Target, call: Sample, like: Sample) -> bool:
    """Return True if an op takes a call, its fake kernel too, and returns as many tensors as for another."""
    if not is_within_domain(target, like, call):
        return False
    with torch.no_grad():
        try:
            if target.overload is not None:
                with fake_mode() as to_fake:
                    call_on(target.full, call.map(to_fake))
            found = call_on(target.call, call.map(_copy))
        except Exception:  # noqa: BLE001 - an op need not take every call, and says so as it likes
            return False
        return len(found) == len(call_on(target.call, like.map(_copy)))


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _gradients(
    target: Target, sample: Sample, leaves: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> NamedResults:
    able = [(leaf, x) for leaf, x in zip(sample.leaves(), leaves, strict=True) if x.requires_grad]
    if not outputs or not able:
        return []
    sent = [cotangent.clone() for cotangent in cotangents]  # they are used again, and a backward may write to them
    grads = torch.autograd.grad(outputs, [x for _, x in able], sent, allow_unused=True)
    return [
        (f"gradient of '{target.name_of(leaf)}'", torch.zeros_like(x) if g is None else g)
        for (leaf, x), g in zip(able, grads, strict=True)
    ]
