"""FLOPs that are derived: a reference runs on tensors without data, and torch's counter counts its operations.

a call of these shapes, dtypes and values is known   its number of before
else                                                 on fake tensors: nothing is computed, and no memory is taken
the reference reads data                             on copies of the tensors; a warning if they have no data either
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from custom_autograd.autograd.reference import call_reference
from custom_autograd.calls.bind import Binder
from custom_autograd.core.errors import KernelWarning
from custom_autograd.core.locations import location_of, stacklevel_of_caller
from custom_autograd.core.messages import format_message
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private import flop_counter
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.values.tensors import tensors_in

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
            self._reference(*positional, **keywords)
            return total()

    def _run_backward(self, values: ByName, wanted: tuple[str, ...]) -> int:
        schema = self._declaration.schema
        inputs = [tensor.requires_grad_() for name in wanted for tensor in tensors_in([values[name]])]
        with torch.enable_grad():
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
    if isinstance(value, (list, tuple)):
        return [_copied(item, copy) for item in value]
    if isinstance(value, Generator):
        return value.clone_state()
    return copy(value) if isinstance(value, Tensor) else value


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
