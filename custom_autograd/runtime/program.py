"""Program: everything that is generated for one op, and the small functions that its source calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from custom_autograd.core.errors import GradientError
from custom_autograd.core.messages import format_message, quote
from custom_autograd.registration.registry import Entry
from custom_autograd.runtime import tensors
from custom_autograd.runtime.below import below
from custom_autograd.runtime.call import conversions, defaults, own_names, write_kernel
from custom_autograd.runtime.derivatives import Derivatives
from custom_autograd.runtime.function import FunctionWriter
from custom_autograd.runtime.lists import Layout, flatten, restore
from custom_autograd.runtime.plan import Plan, make_plan
from custom_autograd.runtime.results import ResultReader
from custom_autograd.runtime.source import Source, compile_source
from custom_autograd.torch_private import dispatch, functions, transforms


class Program:
    """What was generated for an op from its schema and its rules.

    Attributes:
        source: the text.
        plan: what it follows.
        function: the autograd.Function.
        autograd: the kernel at the Autograd key: (keyset, *args, **kwargs).
        kernel: the kernel at a backend's key: (device, *args, **kwargs).
    """

    def __init__(self, entry: Entry) -> None:
        declaration = entry.declaration
        self.plan: Plan = make_plan(entry)
        source = _write(self.plan)
        self.source = source.text
        helpers = {source.own(name): value for name, value in _helpers(entry, self.plan).items()}
        namespace = compile_source(self.source, entry.name, {**helpers, **_values(entry)})
        self.function: type[Function] = namespace[declaration.name.name]
        self.autograd: Callable[..., Any] = namespace[source.own("autograd")]
        self.kernel: Callable[..., Any] = namespace[source.own("kernel")]
        namespace[source.own("apply")] = functions.direct_apply(self.function)
        self.function.__module__ = declaration.function.__module__
        self.function.__new__ = _refuse_instance


def program_of(entry: Entry) -> Program:
    """The program of an op, generated anew after a change of its rules."""
    program = entry.program
    if program is None:
        with entry.lock:
            program = entry.program = entry.program or Program(entry)
    found: Program = program
    return found


def _write(plan: Plan) -> Source:
    source = Source(own_names(plan.declaration.schema, plan.declaration.name.name))
    source.lines("", "")
    write_kernel(source, plan.declaration.schema)
    source.lines("", "")
    FunctionWriter(source, plan).write()
    return source


def _values(entry: Entry) -> dict[str, Any]:
    """Defaults and conversions that generated source names after arguments (Any: of any type)."""
    schema = entry.declaration.schema
    return {**defaults(schema), **conversions(entry.declaration)}


def _helpers(entry: Entry, plan: Plan) -> dict[str, Any]:
    """The functions and classes that generated source uses (Any: of any signature)."""
    derivatives = Derivatives(plan)
    return {
        "torch": torch,
        "overload": entry.overload,
        "is_grad_enabled": torch.is_grad_enabled,
        "no_grad": torch.no_grad,
        "choose": entry.kernels.choose,
        "read_result": ResultReader(entry.declaration, entry.kernels.describe).read,
        "below": below,
        "redispatch": dispatch.redispatch,
        "BELOW_AUTOGRAD": dispatch.BELOW_AUTOGRAD,
        "any_requires_grad": functions.any_requires_grad,
        "is_transforming": transforms.is_transforming,
        "is_forward_mode": transforms.is_forward_mode,
        "has_tangent": has_tangent,
        "has_view": lambda values: any(map(functions.is_view, tensors.tensors_in(values))),
        "plain": tensors.plain,
        "known": tensors.known,
        "without_history": without_history,
        "tensors_in": tensors.tensors_in,
        "copies": tensors.copies,
        "overwrite": tensors.overwrite,
        "flatten_lists": flatten,
        "restore_lists": restore,
        "flatten_gradients": flatten_gradients,
        "Layout": Layout,
        "drop_in": derivatives.drop_in,
        "backward_of": derivatives.backward,
        "jvp_of": derivatives.jvp,
        "keep_for_jvp": derivatives.keep_for_jvp,
        "check_hidden": derivatives.check_hidden,
        "refuse_leaves": lambda inputs: _refuse_leaves(entry, inputs),
        "refuse_if_tracked": lambda inputs: _refuse_if_tracked(entry, inputs),
    }


def without_history(value: Any) -> Any:  # Any: a tensor, a list of tensors, or None
    """A non-differentiable input, cut off from reverse and forward mode."""
    if isinstance(value, (list, tuple)):
        return [without_history(item) for item in value]
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return tensors.plain(value.detach())
    return value


def has_tangent(*values: Any) -> bool:  # Any: tensors, lists of tensors, or None
    """Whether forward mode will ask for a tangent right after forward."""
    return transforms.is_forward_mode() and any(map(transforms.has_tangent, tensors.tensors_in(values)))


def flatten_gradients(values: Sequence[Any], lengths: Sequence[int]) -> tuple[Any, ...]:  # Any: gradients
    """Gradients in the order of the flat inputs; None for a whole list stands for None for each element."""
    flat: list[Any] = []
    for value, length in zip(values, lengths, strict=True):
        if length >= 0:
            flat += [None] * length if value is None else list(value)
        elif length == -1:
            flat.append(value)
    return tuple(flat)


def _refuse_leaves(entry: Entry, inputs: Mapping[str, Any]) -> None:
    """Raises before a leaf is written to; torch itself would raise only after the kernel ran."""
    for name, value in inputs.items():
        if any(map(functions.is_leaf_in_graph, tensors.tensors_in([value]))):
            raise GradientError(
                format_message(
                    entry.name,
                    f"'{name}' is a leaf that requires a gradient, or a view of one, and the op writes to it",
                    declared=entry.declaration.location,
                    do="call it under torch.no_grad(), or on a copy",
                )
            )


def _refuse_if_tracked(entry: Entry, inputs: Mapping[str, Any]) -> None:
    """Raises where an input of a writing op without rules has a gradient or a tangent."""
    names = [name for name, value in inputs.items() if any(map(transforms.is_tracked, tensors.tensors_in([value])))]
    if not names:
        return
    raise GradientError(
        format_message(
            entry.name,
            f"the op writes to {quote(a.name for a in entry.declaration.schema.mutated_arguments)} and has no "
            f"backward, and {quote(names)} requires a gradient: it would be wrong",
            declared=entry.declaration.location,
            do="register_backward, name the inputs that carry no gradient in non_differentiable=, or call it under "
            "torch.no_grad()",
        )
    )


def _refuse_instance(cls: type, *args: object, **kwargs: object) -> object:
    raise TypeError(f"{cls.__name__} is not to be instantiated or called: call the op, or {cls.__name__}.apply(...)")
