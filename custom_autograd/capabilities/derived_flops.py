"""FLOPs that no counter sees: of a reference, derived on tensors without data, and of a backward.

a call of these shapes, dtypes and values is known   its number of before
else                                                 on fake tensors: nothing is computed, and no memory is taken
the reference reads data                             on copies of the tensors; a warning if they have no data either
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Generator, Tensor

from custom_autograd.core.errors import KernelWarning
from custom_autograd.core.locations import layers_of, location_of, stacklevel_of_caller
from custom_autograd.core.messages import format_message
from custom_autograd.core.signatures import is_filled, names_in
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.derivatives import BEFORE_RULES
from custom_autograd.execution.differentiated_reference import call_reference
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.execution.plan import plan_of
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord, record_of
from custom_autograd.torch_private import flop_counter
from custom_autograd.torch_private.dispatch import with_keys_restored
from custom_autograd.torch_private.functions import is_node_of
from custom_autograd.torch_private.nodes import needed_gradients
from custom_autograd.torch_private.saved_tensors import without_hooks
from custom_autograd.values.kernel_results import restore
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.values.tensors import mapped, tensors_in

MOST = 256
"""How many kinds of calls are known of an op; the oldest is forgotten."""

ByName = Mapping[str, Any]  # Any: the arguments of the op, as its author sees them


class DerivedFlops:
    """The FLOPs of one op by its reference."""

    def __init__(self, declaration: Declaration, reference: Callable[..., Any]) -> None:
        self._declaration = declaration
        self._reference = reference
        self._bind = Binder(declaration.schema)
        self._known: OrderedDict[Hashable, int | None] = OrderedDict()

    @property
    def reads_data(self) -> bool:
        """Return True if the reference has read data of a tensor that had none."""
        return None in self._known.values()

    def forward(self, values: ByName) -> int:
        """Return the FLOPs of a call with these arguments."""
        return self._count(values, (), self._run)

    def backward(self, values: ByName, needs: ByName) -> int:
        """Return the FLOPs of the gradients that are needed, as autograd computes them for the reference."""
        wanted = tuple(name for name, need in needs.items() if need is True or (need and any(need)))
        return self._count(values, wanted, lambda copies: self._run_backward(copies, wanted))

    def _run(self, values: ByName) -> int:
        positional, keywords = self._bind.user_call(values)
        with torch.no_grad(), flop_counter.counted() as total:
            with_keys_restored(self._reference, *positional, **keywords)
            return total()

    def _run_backward(self, values: ByName, wanted: tuple[str, ...]) -> int:
        schema = self._declaration.schema
        inputs = [tensor.requires_grad_() for name in wanted for tensor in tensors_in([values[name]])]
        # NOTE: hooks of the caller do not see it: a checkpoint would count tensors that it does not find again.
        with torch.enable_grad(), without_hooks():
            results = call_reference(self._declaration, self._reference, values)
        shown = {output.name for output in schema.visible_outputs}
        of_call = tensors_in([results[one.name] for one in schema.differentiable_results if one.name in shown])
        outputs = [tensor for tensor in of_call if tensor.requires_grad]
        with flop_counter.counted() as total:
            if outputs:
                torch.autograd.grad(outputs, inputs, [torch.ones_like(one) for one in outputs], allow_unused=True)
            return total()

    def _count(self, values: ByName, wanted: tuple[str, ...], run: Callable[[ByName], int]) -> int:
        tensors = tensors_in(list(values.values()))
        with flop_counter.without_modes():
            mode, are_fake = flop_counter.mode_of(tensors)
            key = None if are_fake else _key([wanted, *values.values()])
            if key is not None and key in self._known:
                found = self._known[key]
            else:
                found = self._on_fakes(mode, values, run)
                self._keep(key, found)
            if found is not None:
                return found
            if are_fake or any(tensor.is_meta for tensor in tensors):
                self._warn()
                return 0
            with kept_random_state():
                return run({name: _copied(value, _copy) for name, value in values.items()})

    def _on_fakes(self, mode: Any, values: ByName, run: Callable[[ByName], int]) -> int | None:
        """Return the FLOPs on tensors of a fake mode; None if the reference reads data (Any: it has no public type)."""
        try:
            with mode, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PyTorch, about data that is read
                return run({name: _copied(value, flop_counter.without_data) for name, value in values.items()})
        except Exception:  # noqa: BLE001 - there are many ways to read data; what is wrong raises again on the tensors
            return None

    def _keep(self, key: Hashable | None, flops: int | None) -> None:
        if key is not None:
            self._known[key] = flops
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    def _warn(self) -> None:
        text = format_message(
            str(self._declaration.name),
            "FLOPs count as 0: the reference reads data that is not there",
            rule=location_of(self._reference),
            declared=self._declaration.location,
            do="register_flops a function of the shapes",
        )
        warnings.warn(text, KernelWarning, stacklevel=stacklevel_of_caller())


def _key(value: Any) -> Hashable | None:  # Any: an argument, or a list of arguments
    """Return what the FLOPs depend on; None if that cannot be compared, such as a symbolic size."""
    try:
        key = _part(value)
        hash(key)
    except TypeError:
        return None
    return key


def _part(value: Any) -> Hashable:  # Any: as above
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, str(value.device)
    if isinstance(value, (list, tuple)):
        return tuple(map(_part, value))
    return type(value), value


def _copied(value: Any, copy: Callable[[Tensor], Tensor]) -> Any:  # Any: as above
    """Return an argument that the reference may write to, and draw from."""
    return value.clone_state() if isinstance(value, Generator) else mapped(copy, value)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


# The FLOPs of a backward whose kernels torch's counter cannot see, or whose number is registered.
#
# A kernel in another language that a rule calls by itself counts as 0, unlike an op. So the node of a call that is made
# under the counter has two hooks: what is counted between them is dropped, and the number of the backward counts
# instead.


LANGUAGES = ("custom_autograd.kernels.", "triton.")
"""Where the classes of kernels in other languages are defined."""

MOST_LOOKED_AT = 500
"""Values that are looked at for such a kernel."""


def is_invisible(record: OpRecord) -> bool:
    """Return True if a rule calls a kernel that the counter cannot see, and the reference can be counted instead."""
    rules = [function for rule in record.registrations.gradient_rules() for function in rule.functions]
    return plan_of(record).reference is not None and _reach_kernel(rules)


def _reach_kernel(functions: Sequence[Any]) -> bool:  # Any: functions, and whatever they name
    """Return True if functions, or those that they call, name a kernel in another language."""
    waiting, seen = list(functions), dict[int, Any]()
    while waiting and len(seen) < MOST_LOOKED_AT:
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


def find_node(
    record: OpRecord, results: Sequence[Any]
) -> Any:  # Any: as the schema declares; a node has no public type
    """Return the node that a call has recorded, or None."""
    # It is not found behind a write to a view, after which the graph holds another node.
    function = generated_code_of(record).recording.function
    for tensor in tensors_in(results):
        if is_node_of(tensor.grad_fn, function):
            return tensor.grad_fn
    return None


def count_in(record: OpRecord, node: Any, flops: Callable[[dict[str, Any]], int]) -> None:  # Any: as above
    """Count a number in each run of a node, in place of what its rules do; not of what a checkpoint computes again."""
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
    writer = generated_code_of(record).writer
    found: Sequence[Any] = needed_gradients(node, is_write=bool(writer.mutated))[len(writer.lead) :]
    if writer.has_lists:
        found = restore(found, node.layout.inputs)
    by_name = dict(zip(writer.inputs, found, strict=True))
    return {name: by_name[name] for name in writer.differentiable}
