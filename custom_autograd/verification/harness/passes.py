"""One call of a function of tensors and its backward, the node of its graph, and what it takes to compile a target."""

import contextlib
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_autograd.schema.conversions import GENERATOR_IN_GRAPH
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import functions
from custom_autograd.torch_private.verification import fake_mode
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.base import (
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    root_cause,
    rule_behind,
    skipped,
)
from custom_autograd.verification.harness.differentiable import TensorsFunction, gradients, signed_like
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Function, Target, call_on
from custom_autograd.verification.harness.variants import is_within_domain

BUILT_IN = ("aten", "prim", "prims")


@dataclass(frozen=True, slots=True)
class Forward:
    """Outcome of one call.

    Args:
        inputs: the leaves it was called on, each of which requires grad.
        outputs: the results that carry a gradient.
        positions: which of all results these are.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    positions: tuple[int, ...]

    def backward(
        self, cotangents: Sequence[Tensor], *, retain_graph: bool = False, create_graph: bool = False
    ) -> tuple[Tensor, ...]:
        """Return the gradient of each input; zeros where there is no connection."""
        sent = [u.clone() for u in cotangents]
        with kept_random_state():
            return gradients(self.outputs, self.inputs, sent, retain_graph=retain_graph, create_graph=create_graph)


def forward(function: TensorsFunction, inputs: Sequence[Tensor]) -> Forward:
    """Call once, on copies of the inputs.

    Args:
        function: what is called.
        inputs: its arguments.

    Raises:
        NothingToCheckError: no output carries a gradient.
    """
    leaves = tuple(value.detach().clone().requires_grad_() for value in inputs)
    with kept_random_state():
        results = function(*leaves)
    positions = tuple(i for i, result in enumerate(results) if result.requires_grad)
    if not positions:
        raise NothingToCheckError("no output carries a gradient")
    return Forward(leaves, tuple(results[i] for i in positions), positions)


def cotangents_of(function: TensorsFunction, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return an incoming gradient of both signs for each output that carries one."""
    return signed_like(forward(function, inputs).outputs)


def repeatable_gradients(
    function: TensorsFunction, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of a target of which two calls in a row agree to the last bit.

    Raises:
        NothingToCheckError: they do not, so that nothing can be compared.
    """
    first = [grad.clone() for grad in forward(function, inputs).backward(cotangents)]
    again = forward(function, inputs).backward(cotangents)
    if not all(is_same(a, b) for a, b in zip(first, again, strict=True)):
        raise NothingToCheckError("two calls in a row with equal seeds give different gradients")
    return tuple(first)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same values to the last bit; nan equals nan."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.detach(), other.detach()
    return bool(((one == other) | ((one != one) & (other != other))).all())


def own_node(outputs: Sequence[Tensor]) -> Any:  # Any: torch types the nodes of Functions as none
    """Return the node of the target, if the outputs come from one Function.

    None for a composition, and for a node of PyTorch's own; native nodes have the Function that they stand for.
    """
    nodes = {id(output.grad_fn): output.grad_fn for output in outputs}
    node, *others = nodes.values()
    if others or node is None:
        return None
    before = [row for row, _ in node.next_functions if row is not None]
    is_first = all(row.name().endswith("AccumulateGrad") or row.name() == "CloneBackward0" for row in before)
    return node if is_first and functions.has_function(node) else None


def why_not_own_op(target: Target) -> str | None:
    """Return why a target is not an op registered with the dispatcher, or None if it is one."""
    if target.overload is None:
        return "it is not an op of the dispatcher"
    if target.overload.namespace in BUILT_IN:
        return "it is one of torch's own ops"
    return None


BACKEND = "aot_eager"
"""Everything that torch.compile does to an op, without generating code."""


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


def compiled(call: Function, **options: Any) -> Function:  # Any: those of torch.compile
    """Return a function in compiled code that no other call has used.

    It has a code object of its own: torch.compile keeps its results, and limits, per code object.
    """

    def run(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return call(*args, **kwargs)

    fresh = types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
    function = torch.compile(fresh, **options)
    return lambda *args, **kwargs: function(args, kwargs)


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


def judge_raised(text: str, error: Exception, *, cause: str = "") -> Finding:
    """Return a skip for what an op refuses, or torch by a limit of its own, else a failure, with a cause."""
    message = f"{text} {first_line(root_cause(error))}"
    is_honest = find_refusal(error) is not None or is_limit_of_torch(error)
    return skipped(message) if is_honest else failed(message, cause=cause)


def has_data_dependent_size(target: Target, sample: Sample) -> bool:
    """Return True if the fake kernel returns a size that is unknown before the op runs."""
    with torch.no_grad(), contextlib.suppress(Exception), fake_mode() as to_fake:
        outputs = call_on(target.call, sample.map(lambda tensor: to_fake(tensor.detach())))
        return any(not isinstance(size, int) for output in outputs for size in output.shape)
    return False


def is_limit_of_torch(error: Exception) -> bool:
    """Return True if torch.compile says that it takes no op of this kind, or that the error is its own."""
    text = f"{type(error).__name__} {type(root_cause(error)).__name__}: {error}"
    phrases = SPARSE if rule_behind(error) else (*SPARSE, *LIMITS_OF_TORCH)
    return any(phrase in text for phrase in phrases)


SPARSE = ("Attempted to wrap sparse Tensor", "aten._to_sparse")
"""What torch.compile reports of a sparse tensor, and of one that a fake kernel makes with symbolic sizes."""

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
            found = call_on(target.call, copy(call))
        except Exception:  # noqa: BLE001 - an op need not take every call, and may raise any error
            return False
        return len(found) == len(call_on(target.call, copy(like)))
