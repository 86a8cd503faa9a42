"""Calls in compiled code, backwards that are compiled as a whole, and compiled transforms of torch.func."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.capabilities.inlining import without_inlining
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import compiled_backward
from custom_autograd.verification.calls.call import Call, Outcome, UnfitError, Way, WrongError, run
from custom_autograd.verification.harness.base import find_refusal, first_line, root_cause
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.interpreted import find_interpreter
from custom_autograd.verification.harness.records import record_of, result_names
from custom_autograd.verification.harness.targets import Function, Target
from custom_autograd.verification.harness.tracing import (
    BACKEND,
    TensorCall,
    compiled,
    data_dependence,
    is_limit_of_torch,
    refusal_of,
)


def compilations_of(target: Target) -> tuple[Way, ...]:
    """Return the ways to compile a call: static and dynamic shapes; two of each for an op that is inlined."""
    record = record_of(target)
    return INLINED if record is not None and record.is_inlined else ONE_NODE


def _in_compiled_code(target: Target, call: Call, *, is_dynamic: bool, is_whole: bool) -> Iterator[Outcome]:
    """Call in compiled code; where Python code of the target breaks its graph, with the parts that are compiled.

    Raises:
        UnfitError: the op refuses it, or the graph breaks, after what the parts give; or a graph would hold what
            Triton's interpreter does.
        WrongError: compiling raises anything else.
    """
    _refuse_interpreter(target, call)

    def made(*, is_one_graph: bool) -> Outcome:
        function = compiled(target.call, backend=BACKEND, fullgraph=is_one_graph, dynamic=is_dynamic)
        return _made("compiling", partial(run, target, function, call), _refusal_of_compiler)

    with without_inlining() if is_whole else nullcontext():
        try:
            found, broken = made(is_one_graph=True), ""
        except WrongError as error:
            if target.overload is not None:  # which torch.compile does not look into
                raise
            found, broken = made(is_one_graph=False), str(error)
    yield found
    if broken:
        raise UnfitError(f"its graph breaks, and gives the same in parts: {broken}")


def _with_compiled_backward(target: Target, call: Call) -> Iterator[Outcome]:
    """Call in eager; the backward is traced through the rules when it runs, and compiled as a whole."""
    _refuse_interpreter(target, call)
    with compiled_backward():
        found = _made("the compiled backward", partial(run, target, target.call, call), _refusal_of_compiler)
    yield found


def _refuse_interpreter(target: Target, call: Call) -> None:
    """Raise UnfitError if a graph would hold what Triton's interpreter does: torch.compile looks into no op."""
    interpreter = find_interpreter(partial(run, target, target.call, call)) if target.overload is None else None
    if interpreter is not None:
        raise UnfitError(f"{interpreter}, which a graph cannot hold")


def _refusal_of_compiler(error: Exception) -> str | None:
    """Return what the op refuses, or torch by a limit of its own; None if an error is neither."""
    limit = f"{first_line(root_cause(error))} (a limit of torch)" if is_limit_of_torch(error) else None
    return find_refusal(error) or limit


def _made(what: str, make: Callable[[], Outcome], refusal_of: Callable[[Exception], str | None]) -> Outcome:
    """Return an outcome; whatever the compiler raises is wrong, but for what may be refused."""
    try:
        return make()
    except Exception as error:
        refusal = refusal_of(error)
        text = f"{what} raises {refusal or first_line(root_cause(error))}"
        raise (WrongError(text) if refusal is None else UnfitError(text)) from error


def _compilation(text: str, *, is_dynamic: bool, is_whole: bool = False) -> Way:
    run_compiled = partial(_in_compiled_code, is_dynamic=is_dynamic, is_whole=is_whole)
    return Way(text, run_compiled, oracle=EAGER)


EAGER = "a call in eager"

ONE_NODE = (_compilation("static shapes", is_dynamic=False), _compilation("dynamic shapes", is_dynamic=True))
INLINED = (
    _compilation("static shapes, inlined", is_dynamic=False),
    _compilation("static shapes, not inlined", is_dynamic=False, is_whole=True),
    _compilation("dynamic shapes, inlined", is_dynamic=True),
    _compilation("dynamic shapes, not inlined", is_dynamic=True, is_whole=True),
)
COMPILED_BACKWARD = Way("compiled backward", _with_compiled_backward, oracle=EAGER)


Inner: TypeAlias = Callable[..., tuple[Tensor, ...]]
"""A call as a function of its tensors that can have a gradient; its outputs are those that can have one."""

Transform: TypeAlias = Callable[[Inner, Sequence[Tensor]], tuple[Callable[..., object], Sequence[Tensor]]]
"""Returns a call under a transform of torch.func, and what that is called with."""


def _grad(inner: Inner, xs: Sequence[Tensor]) -> tuple[Callable[..., object], Sequence[Tensor]]:
    def number(*tensors: Tensor) -> Tensor:
        return torch.stack([(y * y.conj()).real.sum() for y in inner(*tensors)]).sum()

    if any(x.is_complex() for x in xs):
        raise UnfitError("torch.func.grad is that of real functions")
    return torch.func.grad(number, tuple(range(len(xs)))), xs


def _vmap(inner: Inner, xs: Sequence[Tensor]) -> tuple[Callable[..., object], Sequence[Tensor]]:
    return torch.func.vmap(inner), [torch.stack([x, x * 0.9]) for x in xs]


def _jvp(inner: Inner, xs: Sequence[Tensor]) -> tuple[Callable[..., object], Sequence[Tensor]]:
    return lambda *tensors: torch.func.jvp(inner, tensors, tensors), xs


def _names_of(transform: Transform, target: Target, sample: Sample, outputs: Sequence[Tensor]) -> list[str]:
    """Return what to call the results of a transform."""
    if transform is _grad:
        leaves = [leaf for leaf in sample.leaves() if can_have_gradient(leaf.tensor)]
        return [f"gradient of '{target.name_of(leaf)}'" for leaf in leaves]
    named = zip(result_names(target, sample, len(outputs)), outputs, strict=True)
    able = [name for name, y in named if can_have_gradient(y)]
    return [*able, *(f"tangent of {name}" for name in able if transform is _jvp)]


def _under(transform: Transform, target: Target, call: Call, *, is_compiled: bool) -> Outcome:
    """Return what a transform gives, by name."""
    inputs = [x.detach().clone() for x in call.sample.tensors()]
    positions = [position for position, x in enumerate(inputs) if can_have_gradient(x)]
    whole = TensorCall(target, call.sample)

    def inner(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = list(inputs)
        for position, tensor in zip(positions, tensors, strict=True):
            values[position] = tensor
        return tuple(y for y in whole(*values) if can_have_gradient(y))

    names = _names_of(transform, target, call.sample, whole(*inputs))
    function, arguments = transform(inner, [inputs[position] for position in positions])
    if is_compiled:
        function = compiled(function, backend="eager", fullgraph=True, dynamic=False)
    if call.state is not None:
        call.state.restore()
    return dict(zip(names, Sample(function(*arguments)).tensors(), strict=True))


def _in_eager(transform: Transform, target: Target, function: Function, call: Call, only: object) -> Outcome:
    del only
    return _under(transform, replace(target, call=function), call, is_compiled=False)


def _in_compiled_code_under(transform: Transform, target: Target, call: Call) -> Iterator[Outcome]:
    """Compile a transform that works in eager.

    Raises:
        UnfitError: it does not work in eager, or the compiler refuses it.
        WrongError: compiling raises anything else.
    """
    if transform is _vmap and data_dependence(target, call.sample)[1]:
        raise UnfitError("a number among its results depends on the data, and may differ between samples")
    try:
        _under(transform, target, call, is_compiled=False)
    except UnfitError:
        raise
    except Exception as error:  # other checks tell what a transform raises in eager
        raise UnfitError(f"it does not run in eager: {find_refusal(error) or first_line(error)}") from error
    make = partial(_under, transform, target, call, is_compiled=True)
    yield _made("compiling", make, partial(refusal_of, target))


TRANSFORMS = tuple(
    Way(
        f"compiled {text}",
        partial(_in_compiled_code_under, transform),
        partial(_in_eager, transform),
        has_gradients=False,
        oracle=f"{text} in eager",
    )
    for text, transform in (("grad", _grad), ("vmap", _vmap), ("jvp", _jvp))
)
