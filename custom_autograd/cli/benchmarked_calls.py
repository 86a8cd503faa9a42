"""Makes the calls of a sample that are timed: every callable in every mode, or the reason why one cannot be timed.

no grad               no input requires a gradient
forward               inputs that can, require a gradient
forward + backward    and the gradients of all visible outputs are taken
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.benchmarking.interleaved import Work
from custom_autograd.cli.show import capabilities_of
from custom_autograd.registration.kernel import KernelChoice
from custom_autograd.registration.kernel_table import kernel_behind
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Function, Target, call_on

MODES = ("no grad", "forward", "forward + backward")

Reader: TypeAlias = Callable[[Any], list[Tensor]]  # Any: what a function returns, in any container
"""Returns the tensors in a result that are differentiated."""


@dataclass(frozen=True, slots=True)
class BenchmarkedCall:
    """One callable on one sample in one mode.

    Attributes:
        name: "op", "reference", or the name of another callable.
        mode: one of `MODES`.
        work: makes the call; None if it cannot be timed.
        reason: why it cannot be timed.
        is_finding: True if the reason is a mistake, False if it follows from the declaration of the op.
    """

    name: str
    mode: str
    work: Work | None
    reason: str = ""
    is_finding: bool = False


def calls_of(
    target: Target, sample: Sample, compared: Mapping[str, Function], *, modes: tuple[str, ...]
) -> list[BenchmarkedCall]:
    """Return every call of a sample, after trying each once.

    Args:
        target: the op.
        sample: the arguments.
        compared: other callables by name, called with the same arguments.
        modes: some of `MODES`; an op that writes to its inputs has the first only, since a leaf that requires a
            gradient may not be written to.

    Returns:
        For the op, its reference if it has one, and what is compared: one call per mode.
    """
    functions: dict[str, Function] = {"op": target.call}
    if target.reference is not None:
        functions["reference"] = target.reference
    functions |= compared
    if target.written_positions(sample):
        modes = tuple(mode for mode in modes if mode == MODES[0])
    return [_call(target, name, function, sample, mode) for name, function in functions.items() for mode in modes]


def kernel_of(target: Target, sample: Sample) -> str | None:
    """Return the kernel that runs for a sample, such as "cpu 'cpp'"; None if it raises or its kernels are not known."""
    record, devices = record_of(target), [tensor.device.type for tensor in sample.tensors()]
    if record is None or not devices:
        return None
    with torch.no_grad(), contextlib.suppress(Exception):  # why it raises is told of the calls that are to be timed
        chosen = kernel_behind(
            record.kernels.choose(devices[0])
        )  # before: a first call may make another choice for the next ones
        call_on(target.call, sample.map(_without_gradient))
        last = chosen.last if isinstance(chosen, KernelChoice) else None
        kernel = last or next(one for one in record.kernels.all() if one.function is chosen)
        is_replaced = getattr(kernel.given, "is_replaced", False)
        return f"{kernel.title}, its fallback" if is_replaced else kernel.title
    return None


def _call(target: Target, name: str, function: Function, sample: Sample, mode: str) -> BenchmarkedCall:
    if name == "op" and mode == MODES[2] and capabilities_of(target.call).get("backward", "").startswith("missing"):
        return BenchmarkedCall(name, mode, None, "no backward is registered")
    hidden = target.hidden if name == "reference" else frozenset[int]()
    try:
        work = _work(function, sample, mode, hidden)
        if work is not None:
            work()
    except Exception as error:  # noqa: BLE001  # any callable may raise anything, and the next call is still timed
        lines = str(error).splitlines() or [""]
        return BenchmarkedCall(name, mode, None, f"it raises {type(error).__name__}: {lines[0]}", is_finding=True)
    return BenchmarkedCall(name, mode, work, "" if work else "no output has a gradient")


def _work(function: Function, sample: Sample, mode: str, hidden: frozenset[int]) -> Work | None:
    """Return a function without arguments; None if no output requires a gradient."""
    own = sample.map(_without_gradient if mode == MODES[0] else _with_gradient)
    args, kwargs = own.args, own.kwargs
    if mode != MODES[2]:
        return lambda: function(*args, **kwargs)
    result = function(*args, **kwargs)
    read = _reader(result, hidden)
    grads = [torch.ones_like(tensor) for tensor in read(result)]
    if not grads:
        return None
    return lambda: torch.autograd.backward(read(function(*args, **kwargs)), grads)


def _without_gradient(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _with_gradient(tensor: Tensor) -> Tensor:
    return _without_gradient(tensor).requires_grad_(tensor.is_floating_point() or tensor.is_complex())


def _reader(result: object, hidden: frozenset[int]) -> Reader:
    """Return a kernel that finds its tensors at known positions, so that the search is not timed."""
    visible = [path for path in _paths(result) if not path or path[0] not in hidden]
    found = [tensor for tensor in _visible(result, hidden).tensors() if tensor.requires_grad]
    if len(visible) == len(found):
        return lambda result: [functools.reduce(operator.getitem, path, result) for path in visible]
    return lambda result: [tensor for tensor in _visible(result, hidden).tensors() if tensor.requires_grad]


def _paths(value: object) -> list[tuple[int, ...]]:
    """Return the index paths of tensors with gradients in nested tuples and lists."""
    if isinstance(value, Tensor):
        return [()] if value.requires_grad else []
    if isinstance(value, (tuple, list)):
        return [(position, *path) for position, part in enumerate(value) for path in _paths(part)]
    return []


def _visible(result: object, hidden: frozenset[int]) -> Sample:
    if hidden and isinstance(result, (tuple, list)):
        return Sample(*(part for position, part in enumerate(result) if position not in hidden))
    return Sample(result)
