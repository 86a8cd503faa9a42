"""A target as a function of those tensors of a sample that can have a gradient; everything else is closed over.

Tensors in lists are arguments of their own, an input that the target writes to is copied first and returned as an
output, and floating tensors are float64: what finite differences and torch.autograd.gradcheck can work on.

Gradients that are not the derivative (`surrogate=`) are left out of some comparisons:

of a reference     its autograd gives the intended gradients: compared with it, and not with finite differences
of a rule          compared with neither
of a jvp           its tangents are compared with neither, and not with the backward
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.core.errors import CheckError, GradientError
from custom_autograd.core.messages import quote, show
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.definitions import is_foreign
from custom_autograd.torch_private.verification import rules_of_definition
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.harness.base import NothingToCheckError, first_line, refusal_or_raise
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.records import output_names
from custom_autograd.verification.harness.settings import where_draws_begin
from custom_autograd.verification.harness.targets import Function, Target, call_on, dense

TensorsFunction: TypeAlias = Callable[..., tuple[Tensor, ...]]
"""Tensors in, one by one; floating and complex tensors out."""


@dataclass(frozen=True, slots=True)
class TensorFunction:
    """A target as a function of some tensors of a sample.

    Args:
        target: what is called.
        sample: where everything else comes from.
        positions: which tensors of the sample the arguments stand for.
        call: `target.call`, or `target.full`, which gives hidden outputs too.
        state: where torch's random numbers begin in every call, so that equal calls draw equal ones.
    """

    target: Target
    sample: Sample
    positions: tuple[int, ...]
    call: Function
    state: RandomState = field(default_factory=where_draws_begin)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the floating and complex results, then the values of the inputs that were written to."""
        return tuple(result for _, result in self._named_results(*tensors))

    @property
    def output_names(self) -> list[str]:
        """Return what a message calls the results, which a call tells."""
        with torch.no_grad():
            return [name for name, _ in self._named_results(*self.inputs)]

    def _named_results(self, *tensors: Tensor) -> list[tuple[str, Tensor]]:
        with kept_random_state():
            self.state.restore()
            return self._call(*tensors)

    def is_random(self) -> bool:
        """Return True if a call draws from torch's default generator, or from one that it is given."""
        if has_generator(self.sample):
            return True
        with kept_random_state():
            before = RandomState.current()
            self._call(*self.inputs)
            return before.has_moved()

    def _call(self, *tensors: Tensor) -> list[tuple[str, Tensor]]:
        leaves = self.sample.leaves()
        values = [leaf.tensor for leaf in leaves]
        for position, tensor in zip(self.positions, tensors, strict=True):
            values[position] = tensor.to(values[position].dtype)  # float32 where the target does not take float64
        written = [position for position, leaf in enumerate(leaves) if self.target.argument_of(leaf).is_mutated]
        for position in written:
            values[position] = values[position].clone()
        outputs = [dense(y) for y in call_on(self.call, self.sample.with_tensors(values))]
        named = list(zip(output_names(self.target, len(outputs)), outputs, strict=True))
        carrying = [i for i in written if self.target.argument_of(leaves[i]).is_differentiable]
        changed = [i for i in carrying if all(values[i] is not output for output in outputs)]
        named += [(f"written '{self.target.name_of(leaves[i])}'", values[i]) for i in changed]
        return [(name, output) for name, output in named if _is_candidate(output)]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return the values of the arguments, each a leaf that requires grad."""
        tensors = self.sample.tensors()
        return tuple(_copied(tensors[position], torch.float64).requires_grad_() for position in self.positions)

    @property
    def names(self) -> tuple[str, ...]:
        """Return what a message calls the arguments."""
        leaves = self.sample.leaves()
        return tuple(self.target.name_of(leaves[position]) for position in self.positions)

    def restricted_to(self, chosen: Sequence[int]) -> "TensorFunction":
        """Return the function of only some of its arguments; the others keep their value and need no gradient."""
        return replace(self, positions=tuple(self.positions[i] for i in chosen))


def function_of(target: Target, sample: Sample, *, is_full: bool = False) -> TensorFunction:
    """Return the target as a function of every tensor of the sample that can have a gradient, in float64.

    Where tensors of the sample require grad, only those count; where none does, all floating and complex ones do.
    A target whose forward or backward does not take float64 gets float32, to which its arguments are rounded.

    Raises:
        NothingToCheckError: there is no such tensor, or the target does not take float32 either.
    """
    positions, call = differentiable_positions(target, sample), target.full if is_full else target.call
    double = TensorFunction(target, sample.map(partial(_copied, dtype=torch.float64)), positions, call)
    if _is_taken(double):
        return double
    single = replace(double, sample=sample.map(partial(_copied, dtype=torch.float32)))
    if _is_taken(single):
        return single
    _call_once(double, sample)
    return double


def reference_of(function: TensorFunction) -> TensorFunction:
    """Return the reference of a target as a function of the same tensors, with the outputs of a call of the target."""
    reference = function.target.visible_reference
    assert reference is not None, "the check applies to targets with a reference only"
    return replace(function, call=reference)


def without_refused_gradients(target: Target, sample: Sample) -> tuple[Sample, str | None]:
    """Return the sample; if the op refuses a gradient, without tensors that require one, and the reason."""
    copies = sample.map(lambda x: x.detach().clone().requires_grad_(x.requires_grad))
    written = [target.argument_of(leaf).is_mutated for leaf in copies.leaves()]
    values = [x.clone() if is_written else x for x, is_written in zip(copies.tensors(), written, strict=True)]
    try:
        outputs = call_on(target.call, copies.with_tensors(values))
        leaves = [x for x in copies.tensors() if x.requires_grad]
        gradients(outputs, leaves, [torch.ones_like(y) for y in outputs])
    except RuntimeError as error:
        refusal = refusal_or_raise(error)
        return sample.map(Tensor.detach), f"gradients: {refusal}"
    return sample, None


def without_gradients_that_the_kernel_refuses(target: Target, sample: Sample) -> Target:
    """Return the target; if it has no backward and its kernel raises where a tensor requires a gradient, as constant.

    Such an op says in its own words that it is for inference.
    """
    able = able_positions(target, sample)
    if not (able and is_foreign(target.subject)) or "backward" in rules_of_definition(target.subject):
        return target

    def is_taken(positions: Sequence[int]) -> bool:
        rows = [x.detach().clone().requires_grad_(i in positions) for i, x in enumerate(sample.tensors())]
        with kept_random_state(), contextlib.suppress(Exception):
            call_on(target.call, sample.with_tensors(rows))
            return True
        return False

    if is_taken(able) or not is_taken(()):
        return target
    return replace(target, arguments=tuple(replace(row, is_differentiable=False) for row in target.arguments))


def vector_jacobian(
    function: TensorsFunction, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradient of <outputs, cotangents> for each input, for copies of cotangents, which it may write to."""
    leaves = tuple(value.detach().clone().requires_grad_() for value in inputs)
    return gradients(function(*leaves), leaves, [u.clone() for u in cotangents])


def gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradient of <outputs, cotangents> for each input; zeros where nothing connects.

    Args:
        outputs: those that carry no gradient, or have no cotangent, are left out.
        inputs: tensors of the graph.
        cotangents: one for each output; a backward may write to them.
        retain_graph: whether another backward follows.
        create_graph: whether the gradients have a graph, which keeps this one too.
    """
    pairs = [(y, u) for y, u in zip(outputs, cotangents, strict=True) if u is not None and y.requires_grad]
    if not pairs or not inputs:
        return tuple(torch.zeros_like(x) for x in inputs)
    grads = torch.autograd.grad(
        [y for y, _ in pairs],
        list(inputs),
        [u for _, u in pairs],
        allow_unused=True,
        retain_graph=retain_graph or create_graph,
        create_graph=create_graph,
    )
    return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True))


def find_written_gradient(function: "TensorFunction") -> str | None:
    """Return what a backward does to its incoming gradient, "writes to" or "resizes"; None if it leaves it alone."""
    inputs = function.inputs
    outputs = function(*inputs)
    with kept_random_state():  # what follows draws the numbers that it would have drawn
        sent = cotangents_like(outputs)
    before = [u.clone() for u in sent]
    with contextlib.suppress(Exception):  # what it raises is a finding of the checks that look at gradients
        gradients(outputs, inputs, sent)
    if any(one.shape != other.shape for one, other in zip(sent, before, strict=True)):
        return "resizes"
    is_same = all(torch.equal(one, other) for one, other in zip(sent, before, strict=True))
    return None if is_same else "writes to"


def push_forward(
    function: TensorFunction, tangents: Sequence[Tensor], inputs: Sequence[Tensor] | None = None
) -> tuple[Tensor, ...]:
    """Return the tangents of the outputs for tangents of the inputs; zeros where an output carries none."""
    with forward_ad.dual_level():
        pairs = zip(function.inputs if inputs is None else inputs, tangents, strict=True)
        outputs = function(*(forward_ad.make_dual(value.detach(), tangent) for value, tangent in pairs))
        return tuple(tangent_of(output) for output in outputs)


def tangent_of(output: Tensor) -> Tensor:
    """Return a copy of the tangent of a dual tensor; zeros where it carries none."""
    primal, tangent = forward_ad.unpack_dual(output)
    return torch.zeros_like(primal) if tangent is None else tangent.detach().clone()


def signed_like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return a cotangent or tangent for each tensor, of both signs, from the global generator (the runner seeds it)."""
    return tuple(torch.randn_like(tensor, memory_format=torch.contiguous_format).detach() for tensor in tensors)


def cotangents_like(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return a cotangent of both signs for each output; zero for one that carries no gradient."""
    pairs = zip(signed_like(outputs), outputs, strict=True)
    return [u if output.requires_grad else u * 0 for u, output in pairs]


def require_gradient(outputs: Iterable[Tensor]) -> None:
    """Raise NothingToCheckError unless an output carries a gradient."""
    if not any(output.requires_grad for output in outputs):
        raise NothingToCheckError("no output carries a gradient")


def can_have_gradient(tensor: Tensor) -> bool:
    """Return True if the dtype is floating or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


def differentiable_positions(target: Target, sample: Sample) -> tuple[int, ...]:
    """Return which tensors of a sample can have a gradient: those that require one, or all that could if none does.

    Raises:
        NothingToCheckError: there is none.
    """
    chosen = able_positions(target, sample)
    if not chosen:
        raise NothingToCheckError("no tensor of the sample can have a gradient")
    return chosen


def able_positions(target: Target, sample: Sample) -> tuple[int, ...]:
    """Return the positions of `differentiable_positions`, or an empty tuple if it would raise."""
    leaves = sample.leaves()
    able = [
        i for i, leaf in enumerate(leaves) if _is_candidate(leaf.tensor) and target.argument_of(leaf).is_differentiable
    ]
    return tuple([i for i in able if leaves[i].tensor.requires_grad] or able)


def _is_candidate(tensor: Tensor) -> bool:
    return can_have_gradient(tensor) and tensor.layout == torch.strided


def _copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor.detach().clone()
    dtype = dtype.to_complex() if tensor.is_complex() else dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(dtype, memory_format=torch.contiguous_format, copy=True)


def _is_taken(function: TensorFunction) -> bool:
    """Return True if neither forward nor backward raises anything but what is said of the gradients of a rule."""
    inputs = function.inputs
    try:
        with kept_random_state():
            outputs = function(*inputs)
            gradients(outputs, inputs, [torch.ones_like(y) for y in outputs])
    except GradientError:
        return True
    except Exception:  # noqa: BLE001 - an op may refuse a dtype in any words
        return False
    if not outputs:
        raise NothingToCheckError("no result of the op can have a gradient")
    return True


def _call_once(function: TensorFunction, original: Sample) -> None:
    """Raise NothingToCheckError if the target takes the sample as it is, but not in float64."""
    try:
        with torch.no_grad():
            function(*function.inputs)
    except Exception as error:
        call_on(function.call, original.map(lambda tensor: tensor.detach().clone()))
        raise NothingToCheckError(f"the op does not take float64: {first_line(error)}") from error


def with_surrogate(target: Target, reason: str | None) -> Target:
    """Return a target none of whose gradients and tangents is the derivative, for a reason; itself for None.

    Raises:
        CheckError: the reason is not a text.
    """
    if reason is None:
        return target
    if not isinstance(reason, str) or not reason.strip():
        raise CheckError(
            target.name,
            "surrogate= takes the reason why the gradient is not the derivative",
            expected="a text",
            found=show(reason),
            do="write surrogate='straight through: the derivative of round is taken to be 1'",
        )
    names = [argument.name for argument in target.arguments]
    return replace(target, surrogates=dict.fromkeys(names, reason), tangent_surrogate=reason)


def require_tangents(function: TensorFunction) -> None:
    """Raise NothingToCheckError if the tangents of the op are not the derivative on purpose."""
    reason = function.target.tangent_surrogate
    if reason:
        raise NothingToCheckError(f"{NO_TANGENT}: {reason}")


NO_TANGENT = "the tangent is not the derivative"


def surrogates_of(function: TensorFunction) -> Mapping[int, str]:
    """Return the arguments whose gradients finite differences must not be compared with: the reason by position."""
    reason = function.target.reference_surrogate
    return {**(dict.fromkeys(range(len(function.positions)), reason) if reason else {}), **_surrogate_rules(function)}


def with_derivatives(function: TensorFunction) -> TensorFunction:
    """Return the function of those arguments whose gradients finite differences verify.

    Raises:
        NothingToCheckError: there are none.
    """
    return without(function, surrogates_of(function))


def with_reference_gradients(function: TensorFunction) -> TensorFunction:
    """Return the function of those arguments whose gradients are those of a function, such as the reference.

    Raises:
        NothingToCheckError: there are none.
    """
    return without(function, _surrogate_rules(function))


def without(function: TensorFunction, surrogates: Mapping[int, str]) -> TensorFunction:
    """Return the function of its other arguments; raise NothingToCheckError if there are none."""
    kept = [i for i in range(len(function.positions)) if i not in surrogates]
    if not kept:
        raise NothingToCheckError(explain(function, surrogates))
    return function.restricted_to(kept)


def explain(function: TensorFunction, surrogates: Mapping[int, str]) -> str:
    """Return the reasons, each with the names of the arguments that it is given for."""
    names = {why: [function.names[i] for i in surrogates if surrogates[i] == why] for why in surrogates.values()}
    return "; ".join(f"the gradient of {quote(names[why])} is not the derivative: {why}" for why in names)


def _surrogate_rules(function: TensorFunction) -> dict[int, str]:
    leaves, target = function.sample.leaves(), function.target
    reasons = [target.surrogates.get(target.argument_of(leaves[position]).name) for position in function.positions]
    return {i: reason for i, reason in enumerate(reasons) if reason}
