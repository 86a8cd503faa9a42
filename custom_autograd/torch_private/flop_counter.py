"""The counter of floating-point operations, `torch.utils.flop_counter.FlopCounterMode`, which is public.

- `flop_counter.flop_registry`: `register_flop_formula` refuses a second formula, and takes none back. A mode copies
  the table when it is made, so a formula has to be there before.
- `flop_counter._FlopCounterMode`, its attribute `counter`: the mode that is on the stack, and the object of the user.
- `FlopCounterMode.flop_counts`, `.mod_tracker`: the counts by module; what an autograd node runs is counted otherwise.
- `_python_dispatch._get_current_dispatch_mode_stack`: the modes in effect.
- `_C._jit_resolve_packet`: a formula belongs to all overloads of a name, and is not given the overload.
- `FakeTensor.fake_mode`: where more tensors without data can be made that go with one.

The module takes a while to import, and most programs do not count: what is registered before waits for the import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import _C, Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from custom_autograd.torch_private.awaited_modules import AwaitedModule
from custom_autograd.torch_private.dispatch import OpOverload, unrecorded
from custom_autograd.torch_private.fakes import new_fake_mode

Formula: TypeAlias = Callable[..., Any]
"""Returns the number of floating-point operations of a call from its arguments (Any: as the schema has it; an int)."""


class PacketFormula:
    """The formula of all overloads of one name, as torch's counter calls it."""

    def __init__(self, packet: Any) -> None:  # Any: an OpOverloadPacket has no public name
        self._packet = packet
        self.by_overload: dict[str, Formula] = {}

    def __call__(self, /, *args: Any, out_val: Any = None, **kwargs: Any) -> Any:  # Any: as the schema declares
        """Return the FLOPs of a call."""
        overloads = self._packet.overloads()
        resolve = _C._jit_resolve_packet
        name = overloads[0] if len(overloads) == 1 else resolve(self._packet._qualified_op_name, *args, **kwargs)
        formula = self.by_overload.get(name or "default")
        return 0 if formula is None else formula(*args, **kwargs)


def register(overload: OpOverload, formula: Formula) -> None:
    """Let torch count the calls of an op by a formula, which replaces the one before; a user's own stays.

    Nothing is done before the counter is imported: see `when_imported`.
    """
    if _counter.module is None:
        return
    packet = overload._overloadpacket
    whole = _counter.module.flop_registry.setdefault(packet, PacketFormula(packet))
    if isinstance(whole, PacketFormula):
        whole.by_overload[overload._overloadname] = formula


def withdraw(overload: OpOverload) -> None:
    """Take the formula of an op back, if it has one."""
    registry = getattr(_counter.module, "flop_registry", {})
    whole = registry.get(overload._overloadpacket)
    if isinstance(whole, PacketFormula):
        whole.by_overload.pop(overload._overloadname, None)
        if not whole.by_overload:
            del registry[overload._overloadpacket]


_counter = AwaitedModule("torch.utils.flop_counter")
when_imported = _counter.when_imported


def counters() -> list[Any]:  # Any: FlopCounterMode, whose module is not imported here
    """Return the counters that are on in this thread, none before the module was imported."""
    if _counter.module is None:
        return []
    cls = _counter.module._FlopCounterMode
    return [mode.counter for mode in _get_current_dispatch_mode_stack() if isinstance(mode, cls)]


def snapshot(counter: Any) -> dict[str, dict[Any, int]]:  # Any: as above, and the names of ops
    """Return a copy of the counts, for `replace_since`."""
    return {module: dict(counts) for module, counts in counter.flop_counts.items()}


def replace_since(counter: Any, before: dict[str, dict[Any, int]], name: str, flops: int) -> None:
    """Count a number under a name in place of everything that was counted since a snapshot (Any: as above)."""
    counter.flop_counts.clear()
    for module, counts in before.items():
        counter.flop_counts[module].update(counts)
    for module in set(counter.mod_tracker.parents):
        counter.flop_counts[module][name] += flops


without_modes = unrecorded
"""Leave all modes, the counters of the user among them."""


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Count the FLOPs within; the result returns their number."""
    from torch.utils.flop_counter import FlopCounterMode  # loaded by whoever counts

    with FlopCounterMode(display=False) as counter:
        yield counter.get_total_flops


def mode_of(tensors: Sequence[Tensor]) -> tuple[Any, bool]:
    """Return a mode in which tensors have no data, and whether one of the given ones is of it (Any: FakeTensorMode)."""
    from torch._subclasses.fake_tensor import FakeTensor  # loads sympy, which only who counts needs

    mode = next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None)
    return (new_fake_mode(), False) if mode is None else (mode, True)


def without_data(tensor: Tensor) -> Tensor:
    """Return a tensor like another in the fake mode that is on."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
