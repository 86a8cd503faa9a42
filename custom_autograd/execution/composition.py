"""Ops that are made of other ops: at the Autograd key they are taken apart, and the others answer for every mode.

A variant   op.inplace and op.out are the op and a copy, except where a kernel of their own may run.
A view      is what its reference makes of PyTorch's own views, if it has a reference and no gradient rules: autograd,
            functionalization and vmap handle those, and no other op may make a view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientUnavailable, KernelError
from custom_autograd.core.signatures import names_in
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import DropInRule, JvpRule, Rule
from custom_autograd.torch_private import dispatch, guards, transforms
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.dispatch import HANDED_BACK
from custom_autograd.values.kernel_results import ResultReader
from custom_autograd.values.tensors import tensors_in


def may_compose(record: OpRecord) -> bool:
    """Return True if an op can be one that is made of others."""
    return record.declaration.composition is not None or record.declaration.schema.is_view


def find_composition(record: OpRecord) -> Callable[..., Any] | None:  # Any: takes and returns what the schema declares
    """Return the function that takes an op apart, now, or None."""
    if record.declaration.composition is not None:
        return record.declaration.composition
    has_rules = bool(record.registrations.gradient_rules()) or record.registrations.get(JvpRule) is not None
    return None if has_rules or not record.declaration.schema.is_view else record.reference()


def autograd(record: OpRecord) -> Callable[..., Any]:  # Any: as the schema declares
    """Return the kernel at the Autograd key of an op that may be made of others."""
    bind, run = Binder(record.declaration.schema), _runner(record)

    @outside_compilation
    def composed(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        compose = find_composition(record)
        if compose is None:
            _refuse_lost_writes(record, [*args, *kwargs.values()])
            return generated_code_of(record).autograd(keyset, *args, **kwargs)
        is_view = record.declaration.schema.is_view
        if not is_view and not _is_to_be_composed(record, [*args, *kwargs.values()]):
            assert record.overload is not None
            return dispatch.redispatch(record.overload, keyset & dispatch.BELOW_AUTOGRAD, *args, **kwargs)
        return run(compose, bind.arguments(*args, **kwargs))

    return composed


def _runner(record: OpRecord) -> Callable[..., Any]:
    """Return a function that runs a composition on arguments by name, and checks its results."""
    bind = Binder(record.declaration.schema)
    read = ResultReader(record.declaration, lambda _: "reference").read

    def run(compose: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        positional, keywords = bind.call(hold_back(record, arguments))
        return read(compose(*positional, **keywords), arguments, None)

    return run


def derivable_reference(record: OpRecord) -> Callable[..., Any] | None:  # Any: as the schema declares
    """Return the reference, unless autograd through it would take the place of a rule that is not its derivative."""
    rules = [*record.registrations.gradient_rules(), record.registrations.get(JvpRule)]
    is_other = any(rule is not None and (rule.surrogate or _marks_outputs(rule)) for rule in rules)
    return None if is_other else record.reference()


def _marks_outputs(rule: Rule) -> bool:
    """Return True if a setup_context may declare that outputs of a call carry no gradient."""
    setup = rule.setup_context if isinstance(rule, DropInRule) else None
    return "mark_non_differentiable" in names_in(getattr(setup, "__code__", None))


def hold_back(record: OpRecord, values: dict[str, Any]) -> dict[str, Any]:  # Any: what the schema declares
    """Return arguments or results by name, detached where the op declares that they never carry a gradient.

    Autograd sees the operations of a reference, where nothing else holds such gradients back; the op that a variant is
    made of does so itself.
    """
    fixed = record.declaration.schema.fixed_names
    if not fixed or record.declaration.composition is not None:
        return values
    return {name: _detached(value) if name in fixed else value for name, value in values.items()}


def hold_back_results(record: OpRecord, result: Any) -> Any:  # Any: as above
    """Return what a reference returned, held back in the same way."""
    names = record.declaration.schema.output_names
    are_several = isinstance(result, tuple) and len(names) > 1
    results = tuple(result) if are_several else (result,)
    if len(results) != len(names):  # whatever reads the result refuses it
        return result
    held = tuple(hold_back(record, dict(zip(names, results, strict=True))).values())
    return held if are_several else held[0]


def _detached(value: Any) -> Any:  # Any: as above
    if isinstance(value, (list, tuple)):
        return [*map(_detached, value)]
    return value.detach() if isinstance(value, Tensor) else value


def _refuse_lost_writes(record: OpRecord, values: list[Any]) -> None:
    """Refuse derivatives that a later write to the view, or to what it is a view of, would make wrong.

    Only plain reverse mode notices such a write, and raises. Under `torch.func.jvp` the tangents are views as well.
    """
    is_transforming = transforms.is_transforming()
    if is_transforming and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(values)):
        _refuse(record, "gradients under a transform would miss writes to the view", "")
    if is_transforming or not transforms.is_forward_mode():
        return
    if any(map(transforms.has_tangent, tensors_in(values))):
        _refuse(record, "PyTorch cannot derive forward mode through it", ", or use torch.func.jvp")


def _refuse(record: OpRecord, reason: str, alternative: str) -> NoReturn:
    raise record.declaration.error(
        GradientUnavailable,
        f"the op returns a view and has gradient rules: {reason}",
        expected="a view with a reference, and without gradient rules",
        do=f"declare it with reference=True and no gradient rules{alternative}",
    )


def functionalize(record: OpRecord) -> Callable[..., Any]:  # Any: as the schema declares
    """Return the kernel at the Functionalize key of a view: PyTorch refuses a view that is not made of its own."""
    bind, run = Binder(record.declaration.schema), _runner(record)

    @outside_compilation
    def functional(*args: Any, **kwargs: Any) -> Any:
        compose = find_composition(record)
        if compose is None:
            raise record.declaration.error(
                KernelError,
                "the op returns a view, and a graph can only hold views that are made of PyTorch's own",
                expected="a view with a reference, and without gradient rules",
                found=record.declaration.schema.text,
                do="declare it with reference=True and no gradient rules, or return new memory",
            )
        return run(compose, bind.arguments(*args, **kwargs))

    return functional


def _is_to_be_composed(record: OpRecord, values: list[Any]) -> bool:
    """Return True if no own kernel may run: there is none, or gradients, transforms or old graphs need the parts."""
    tensors = tensors_in(values)
    kernel = record.kernels.get(tensors[0].device.type if tensors else None) or record.kernels.get(None)
    if kernel is None or kernel.given is record.declaration.function:
        return True
    if transforms.is_transforming() or transforms.is_forward_mode():
        return True
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return True
    # torch can functionalize its writes with the tags, and without an argument named 'mode'
    can_be_in_graphs = bool(HANDED_BACK) and "mode" not in record.declaration.schema.argument_names
    return not can_be_in_graphs and bool(guards.torch_dispatch_modes())
