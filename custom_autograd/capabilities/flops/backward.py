"""The FLOPs of a backward whose kernels torch's counter cannot see, or whose number is registered.

A kernel in another language that a rule calls by itself counts as 0, unlike an op. So the node of a call that is made
under the counter has two hooks: what is counted between them is dropped, and the number of the backward counts instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

from custom_autograd.autograd.derivatives import BEFORE_RULES
from custom_autograd.autograd.plan import plan_of
from custom_autograd.core.code_names import is_filled, names_in
from custom_autograd.core.locations import layers_of
from custom_autograd.dispatch.generated import generated_code_of
from custom_autograd.registration.registry import OpRecord, record_of
from custom_autograd.torch_private import flop_counter
from custom_autograd.torch_private.edges import needed_gradients
from custom_autograd.torch_private.functions import is_node_of
from custom_autograd.values.lists import restore
from custom_autograd.values.tensors import tensors_in

LANGUAGES = ("custom_autograd.kernels.", "triton.")
"""Where the classes of kernels in other languages are defined."""

MOST = 500
"""Values that are looked at for such a kernel."""


def is_invisible(record: OpRecord) -> bool:
    """Return True if a rule calls a kernel that the counter cannot see, and the reference can be counted instead."""
    rules = [function for rule in record.registrations.gradient_rules() for function in rule.functions]
    return plan_of(record).reference is not None and _reach_kernel(rules)


def _reach_kernel(functions: Sequence[Any]) -> bool:  # Any: functions, and whatever they name
    """Return True if functions, or those that they call, name a kernel in another language."""
    waiting, seen = list(functions), dict[int, Any]()
    while waiting and len(seen) < MOST:
        value = waiting.pop()
        if id(value) in seen or record_of(value) is not None:  # an op is counted by itself
            continue
        seen[id(value)] = value
        for layer in layers_of(value) if callable(value) else ():
            kind: type = type(layer)
            if any(base.__module__.startswith(LANGUAGES) for base in kind.__mro__):
                return True
            waiting += _named(layer)
    return False


def _named(function: Any) -> Iterator[Any]:  # Any: a callable; what a function names
    """Yield the values of the global names and the closure of a function that is not torch's."""
    if not isinstance(function, FunctionType) or function.__module__.partition(".")[0] == "torch":
        return
    names = names_in(function.__code__)
    yield from (function.__globals__[name] for name in names if name in function.__globals__)
    yield from (cell.cell_contents for cell in function.__closure__ or () if is_filled(cell))


def find_node(record: OpRecord, results: Sequence[Any]) -> Any:  # Any: as the schema says; a node has no public type
    """Return the node that a call has recorded, or None.

    It is not found behind a write to a view, after which the graph holds another node.
    """
    function = generated_code_of(record).recording.function
    for tensor in tensors_in(results):
        node = tensor.grad_fn
        if node is not None and node.name().startswith(ALIAS):  # autograd's, of an argument that is also a result
            node = node.next_functions[0][0]
        if is_node_of(node, function):
            return node
    return None


ALIAS = ("AliasBackward", "ViewBackward")


def count_in(record: OpRecord, node: Any, flops: Callable[[dict[str, Any]], int]) -> None:  # Any: as above
    """Count a number in each run of a node, in place of what its rules do; not of what a checkpoint computes again.

    Args:
        record: the op.
        node: of a call.
        flops: the number for the gradients that a backward computes, as a dict by input.
    """
    begun: list[list[tuple[Any, Any]]] = []

    def begin(grads: object) -> None:
        begun.append([(counter, flop_counter.snapshot(counter)) for counter in flop_counter.counters()])

    def begin_again() -> None:
        begun.pop()
        begin(None)

    def end(gradients: object, grads: object) -> None:
        number = flops(_needs_now(record, node))
        for counter, before in begun.pop():
            flop_counter.replace_since(counter, before, f"{record.name} backward", number)

    node.register_prehook(begin)
    setattr(node, BEFORE_RULES, begin_again)
    node.is_odd = True  # the general backward runs, which calls it
    node.register_hook(end)


def _needs_now(record: OpRecord, node: Any) -> dict[str, Any]:  # Any: as above; bools, or lists of bools
    """Return, by differentiable input, whether the backward in progress computes its gradient."""
    writer = generated_code_of(record).recording_facts.writer
    found: Sequence[Any] = needed_gradients(node, is_write=bool(writer.mutated))[len(writer.lead) :]
    if writer.has_lists:
        found = restore(found, node.layout.inputs)
    by_name = dict(zip(writer.inputs, found, strict=True))
    return {name: by_name[name] for name in writer.differentiable}
