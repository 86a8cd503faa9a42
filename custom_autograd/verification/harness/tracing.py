"""What it takes to trace a target: its fake kernel next to the real one, compiled code, and limits of torch in both."""

import contextlib
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from custom_autograd.schema.conversions import GENERATOR_IN_GRAPH
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import functions
from custom_autograd.torch_private.verification import fake_mode, untimed_guards
from custom_autograd.verification.harness.agreement import is_within_domain, values_of
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
from custom_autograd.verification.harness.comparison import find_untruth
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.records import output_names, record_of
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Function, Target, call_on

BUILT_IN = ("aten", "prim", "prims")


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
    written: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Find out what is written to, which Dynamo would trace."""
        object.__setattr__(self, "written", tuple(sorted(self.target.written_positions(self.sample))))

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, then the values of the inputs that were written to."""
        values = [x.clone() if i in self.written else x for i, x in enumerate(tensors)]
        return self.on(*values) + tuple(values[i] for i in self.written)

    def on(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of a call on these very tensors, which it may write to."""
        return call_on(self.target.call, self.sample.with_tensors(tensors))


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

    def run_untimed(*args: object, **kwargs: object) -> object:
        with untimed_guards():
            return function(args, kwargs)

    return run_untimed


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
    if find_refusal(error) is not None:
        return skipped(message)
    return skipped(f"{message} (a limit of torch)") if is_limit_of_torch(error) else failed(message, cause=cause)


def data_dependence(target: Target, sample: Sample) -> tuple[bool, bool]:
    """Return whether the fake kernel returns a size, and a number, that is unknown before the op runs."""
    with contextlib.suppress(Exception), torch.no_grad(), fake_mode() as to_fake:
        traced = sample.map(lambda tensor: to_fake(tensor.detach()))
        result = target.call(*traced.args, **traced.kwargs)
        has_size = any(not isinstance(size, int) for output in Sample(result).tensors() for size in output.shape)
        results = result if isinstance(result, tuple) else (result,)
        return has_size, any(isinstance(one, (torch.SymInt, torch.SymFloat, torch.SymBool)) for one in results)
    return False, False


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


def fake_outputs(target: Target, sample: Sample) -> tuple[Tensor, ...]:
    """Return what the fake kernel gives of a call."""
    with fake_mode() as to_fake:
        return call_on(target.full, sample.map(to_fake))


def find_real(target: Target, sample: Sample, like: Sample) -> tuple[Tensor, ...] | None:
    """Return what the op returns for a variant of a sample; None if its fake or real kernel refuses it."""
    if not is_within_domain(target, like, sample):
        return None
    with torch.no_grad():
        try:
            if target.overload is not None:
                fake_outputs(target, sample)
            return call_on(target.full, copy(sample))
        except Exception:  # noqa: BLE001 - an op need not take every call, and may raise any error
            return None


def takes(target: Target, sample: Sample, like: Sample) -> bool:
    """Return True if an op takes a variant of a sample, its fake kernel too, and returns as many tensors."""
    found = find_real(target, sample, like)
    with torch.no_grad():
        return found is not None and len(found) == len(call_on(target.full, copy(like)))


def find_false_fake(target: Target, sample: Sample) -> str | None:
    """Return how the results of the fake kernel differ from the real ones; None if they agree, or there is no fake."""
    if target.overload is None or any(x.is_conj() or x.is_neg() for x in sample.tensors()):  # torch fakes no such view
        return None
    with torch.no_grad():
        real = values_of(target, target.full, sample)
        real = real[: len(real) - len(target.written_positions(sample))]
        try:
            said = fake_outputs(target, sample)
        except Exception as error:  # noqa: BLE001 - whatever the fake raises where the kernel does not
            return None if find_refusal(error) else f"the fake kernel raises {first_line(root_cause(error))}"
    untruth = find_untruth(said, real, output_names(target, len(real)))
    return None if untruth is None else untruth[1]
