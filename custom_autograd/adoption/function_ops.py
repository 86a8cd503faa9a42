"""Declares an op that computes the same as an autograd.Function, without changing its source: `from_function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from custom_autograd.adoption.forward_calls import (
    Call,
    Function,
    FunctionContext,
    parameters_of,
    run_forward,
    with_defaults,
)
from custom_autograd.adoption.function_plans import COMPUTED, CONSTANT, NUMBER, Plan, find_identical, plan_of
from custom_autograd.adoption.function_types import Parameters, op_function, typed_parameters
from custom_autograd.core.errors import DeclarationError, GradientError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote, show
from custom_autograd.op import CustomOp, custom_op
from custom_autograd.schema.annotations import Refusal
from custom_autograd.schema.samples import Sample, TensorFactory, map_tensors
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private.functions import version_of
from custom_autograd.values.tensors import is_wanted, materialize

Samples = Callable[[TensorFactory], Iterable[Sample]] | Iterable[Sample | Sequence[Any]] | None


def from_function(function: Function, name: str, /, *, samples: Samples = None) -> CustomOp[..., Any]:
    """Declare an op that computes the same outputs and gradients as a `torch.autograd.Function`.

    Intermediate tensors that forward keeps for the backward become hidden outputs; numbers and shapes are computed
    again. An argument that forward returns is copied, because the results of an op do not share memory.

    Args:
        function: a subclass of `torch.autograd.Function`, with or without `setup_context`.
        name: "namespace::name" of the op.
        samples: calls to record: a generator as in `register_samples`, or a list of samples or tuples of arguments.
            They show the types of arguments without annotations, and the values that forward keeps on ctx, and become
            the samples of the op. By default, small tensors and numbers, if all parameters have annotations.

    Returns:
        The op; `op(...)` replaces `function.apply(...)`.

    Raises:
        DeclarationError: if no call can be recorded, forward writes to an argument, an argument has a type that ops
            cannot take, or forward keeps different values on ctx in different calls.

    Example:
        >>> import torch
        >>> from custom_autograd import from_function
        >>> class Cube(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x**3
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (x,) = ctx.saved_tensors
        ...         return 3 * grad * x**2
        >>> cube = from_function(Cube, "docs::cube_of_function", samples=[(torch.ones(2),)])
        >>> torch.func.grad(cube)(torch.tensor(2.0))
        tensor(12.)
    """
    given: object = function
    if not (isinstance(given, type) and issubclass(given, torch.autograd.Function)):
        problem = "from_function takes a subclass of torch.autograd.Function"
        raise DeclarationError(name, problem, found=show(given), do="pass the class itself, without apply")
    refuse = Refusal(name, location_of(function.forward))
    made = _samples_of(function, samples, refuse)
    arguments = [_positional(function, sample, refuse) for sample in made]
    parameters, static = typed_parameters(function, arguments, refuse)
    calls = [_recorded(function, parameters, values, refuse) for values in arguments]
    calls += [call for values in arguments for call in _recorded_with_gaps(function, values)]
    plan = plan_of(function, parameters, calls, refuse)
    kernel = op_function(plan.kernel, function.forward, plan.signature)
    outputs, hidden = (*plan.outputs, *plan.hidden), plan.hidden
    declare = custom_op(name, outputs=outputs, hidden=hidden, non_differentiable=plan.fixed, static=static)
    op: CustomOp[..., Any] = declare(kernel)
    if plan.abstract is not None:
        op.register_fake(op_function(plan.fake, function.forward, plan.signature))
    if op.schema.differentiable_arguments and op.schema.visible_results:
        rule = _BackwardRule(plan, op.schema)
        backward = op_function(rule.gradients, function.backward, rule.signature)
        materializes = plan.call.context.custom_autograd_materializes
        op.register_backward(backward, once_differentiable=rule.is_once, materialize_grads=materializes)
    op.register_samples(samples if callable(samples) else _samples_rule(function, made))
    return op


# ------------------------------------------------------------------------------------------------- recorded calls


def _samples_of(function: Function, samples: Samples, refuse: Refusal) -> list[Sample]:
    if samples is None:
        return [_guessed(function, refuse)]
    given = samples(TensorFactory(requires_grad=False)) if callable(samples) else samples
    made = [one if isinstance(one, Sample) else Sample(*one) for one in given]
    found = [sample for sample in made if sample.error is None]
    if not found:
        raise refuse(
            "samples= does not contain a call", expected="a Sample, or a tuple of arguments", do="pass at least one"
        )
    return found


def _guessed(function: Function, refuse: Refusal) -> Sample:
    """Return arguments for parameters that are annotated as tensors and numbers, or have a default."""
    try:
        parameters, _ = typed_parameters(function, [], refuse)
        values = [GUESSES.get(one.annotation, one.default) for one in parameters]
        if inspect.Parameter.empty not in values:
            return Sample(*(value() if callable(value) else value for value in values))
    except DeclarationError:
        pass
    missing = [one.name for one in parameters_of(function) if one.annotation is one.empty]
    raise refuse(
        "the types of arguments, and the values that forward keeps on ctx, are not known without a call",
        expected="samples=, or annotations of tensors and numbers",
        found=f"no annotation of {quote(missing)}" if missing else "annotations of other types",
        do="pass samples=[(tensor, ...)], the arguments of a call",
    )


GUESSES: Mapping[Any, Any] = {Tensor: lambda: torch.rand(4, 4), float: 0.5, int: 1, bool: True}


def _positional(function: Function, sample: Sample, refuse: Refusal) -> list[Any]:
    """Return the arguments of a sample in the order of forward, with its defaults."""
    try:
        return with_defaults(function, *sample.args, **sample.kwargs)
    except TypeError as error:
        signature = str(inspect.Signature(parameters_of(function)))
        raise refuse(
            f"a sample does not fit forward: {error}", expected=signature, found=show(sample), do="correct it"
        ) from error


def _recorded(function: Function, parameters: Parameters, arguments: list[Any], refuse: Refusal) -> Call:
    """Call forward once; raise if it raises, or does something that an op cannot do."""
    values = [map_tensors(value, Tensor.detach) for value in arguments]
    versions = [version_of(value) if isinstance(value, Tensor) else 0 for value in values]
    try:
        call = run_forward(function, values)
    except Exception as error:
        raise refuse(
            f"forward raises for a recorded call: {error!r}", do="pass samples= that forward accepts"
        ) from error
    rows = zip(parameters, values, versions, strict=True)
    written = [
        one.name for one, value, version in rows if _is_written(value, version, call.context.custom_autograd_dirty)
    ]
    if written:
        raise refuse(
            f"forward writes to {quote(written)}",
            expected="a forward that returns new tensors",
            do="declare an op with mutates_args= and a backward of its own, or copy the argument before the call",
        )
    if any(isinstance(leaf, Tensor) and leaf.grad_fn is not None for leaf in call.leaves):
        raise refuse(
            "forward records a graph, and keeps it on ctx for the backward",
            expected="a forward that keeps tensors without a graph, because an op saves their values alone",
            do="save the inputs, and compute under torch.enable_grad() in the backward",
        )
    wrong = [value for value in call.outputs if not isinstance(value, (Tensor, int, float, bool, type(None)))]
    if wrong:
        problem, do = "forward returns what an op cannot return", "return it from a function around the op"
        raise refuse(problem, expected="tensors or numbers", found=show(wrong[0]), do=do)
    return call


def _is_written(value: object, version: int, dirty: Sequence[Tensor]) -> bool:
    return isinstance(value, Tensor) and (version_of(value) != version or find_identical(value, dirty) is not None)


def _recorded_with_gaps(function: Function, arguments: list[Any]) -> list[Call]:
    """Call forward once with tensors that are not contiguous, of which it may keep copies; return [] if it raises."""
    values = [map_tensors(value, lambda one: torch.stack([one.detach()] * 2, -1)[..., 0]) for value in arguments]
    try:
        return [run_forward(function, values)]
    except Exception:  # noqa: BLE001 - a Function need not take them
        return []


def _samples_rule(function: Function, made: list[Sample]) -> Callable[[TensorFactory], Iterable[Sample]]:
    def rule(make: TensorFactory) -> Iterable[Sample]:
        return [_fresh(sample, make) for sample in made]

    return cast(Callable[..., Any], op_function(rule, function.forward, inspect.signature(rule)))


def _fresh(sample: Sample, make: TensorFactory) -> Sample:
    """Return a sample with copies of its tensors on the device, and of the dtype, under test."""

    def copy(tensor: Tensor) -> Tensor:
        is_number = tensor.is_floating_point()
        copied = tensor.detach().to(make.device, make.dtype if is_number else tensor.dtype, copy=True)
        return copied.requires_grad_(copied.is_floating_point() or copied.is_complex())

    return sample.map(copy)


# ------------------------------------------------------------------------------------------------------ the backward


class _BackwardRule:
    """The backward of a Function as a rule bound by name; it runs on a ctx with the values that forward kept."""

    def __init__(self, plan: Plan, schema: Schema) -> None:
        self.is_once = _without_once(plan.function.backward) is not None
        self._plan = plan
        self._location = location_of(plan.function.backward)
        self._grads = [f"grad_{name}" if name in schema.visible_results else None for name in plan.outputs]
        self._differentiable = frozenset(one.name for one in schema.differentiable_arguments)
        tensors = schema.tensor_names
        self._tensors = [name for name in plan.names if name in tensors]
        named = [one.value for one in plan.kept if one.source not in (COMPUTED, CONSTANT)]
        numbers = [name for name in plan.names if name not in tensors] if plan.is_computed else []
        names = [*(name for name in self._grads if name), *named, *numbers, "needs", "meta"]
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in dict.fromkeys(names)]
        self.signature = inspect.Signature(parameters)

    @property
    def _backward(self) -> Callable[..., Any]:
        """Return the backward that the Function has now, as `apply` runs it: another may have been set."""
        backward: Callable[..., Any] = self._plan.function.backward
        return (_without_once(backward) if self.is_once else None) or backward

    def gradients(self, *values: Any) -> dict[str, Any]:  # Any: as named
        """Run the backward of the Function, and return the gradients by argument."""
        given = dict(zip(self.signature.parameters, values, strict=True))
        needs, meta = given["needs"], given["meta"]
        wanted = [name in self._differentiable and is_wanted(getattr(needs, name)) for name in self._plan.names]
        context = FunctionContext(tuple(wanted))
        attributes = self._kept(given, meta)
        context.save_for_backward(*attributes.pop("saved_tensors"))
        vars(context).update(attributes)
        grads = [
            self._grad(name, grad, given, meta) for name, grad in zip(self._plan.outputs, self._grads, strict=True)
        ]
        result = self._backward(context, *grads)
        return self._by_name(list(result) if isinstance(result, (tuple, list)) else [result], meta)

    def _kept(self, given: Mapping[str, Any], meta: Any) -> dict[str, Any]:
        """Return what forward kept on ctx, by attribute."""
        plan = self._plan
        known = []
        if plan.is_computed:
            known = [getattr(meta, name) if name in self._tensors else given[name] for name in plan.names]
        rows = zip(plan.kept, plan.leaves(given, known), plan.call.leaves, strict=True)
        return plan.call.with_leaves(
            [type(first)(leaf.tolist()) if one.source == NUMBER else leaf for one, leaf, first in rows]
        )

    def _grad(self, output: str, grad: str | None, given: Any, meta: Any) -> Any:
        """Return the gradient of an output; for one without a gradient, what autograd passes in its place."""
        if grad is not None:
            return given[grad]
        known = getattr(meta, output, None) if self._plan.call.context.custom_autograd_materializes else None
        return materialize(None, known, None)

    def _by_name(self, found: list[Any], meta: Any) -> dict[str, Any]:
        """Return the gradients by argument, as leniently as the engine does."""
        names = self._plan.names
        while len(found) > len(names) and found[-1] is None:
            found.pop()
        found += [None] * (len(names) - len(found))
        gradients = {}
        for name, gradient in zip(names, found[: len(names)], strict=True):
            if name in self._differentiable:
                gradients[name] = _like(gradient, getattr(meta, name))
            elif gradient is not None:
                found.append(gradient)
        if len(found) > len(names):
            raise self._wrong(found[len(names) :])
        return gradients

    def _wrong(self, surplus: list[Any]) -> GradientError:
        return GradientError(
            self._plan.origin.op,
            "the backward returns more gradients than there are differentiable arguments",
            expected=f"{len(self._plan.names)}, with None for arguments that are not differentiable",
            found=show(surplus[0]),
            rule=self._location,
            declared=self._plan.origin.declared,
            do="return None in its place",
        )


def _like(gradient: Any, known: Any) -> Any:
    """Return a gradient as the engine accumulates it: summed over what was broadcast, in the dtype of the input."""
    if not isinstance(gradient, Tensor) or known is None or isinstance(known, list):
        return gradient
    gradient = gradient if gradient.shape == known.shape else gradient.sum_to_size(known.shape)
    return gradient if gradient.dtype == known.dtype else gradient.to(known.dtype)


def _without_once(backward: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the backward that `once_differentiable` wraps, or None if it is not decorated with it."""
    code = torch.autograd.function.once_differentiable(lambda ctx: ctx).__code__
    return getattr(backward, "__wrapped__", None) if getattr(backward, "__code__", None) is code else None
