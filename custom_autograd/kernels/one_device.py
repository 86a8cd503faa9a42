"""Refuses tensors on several devices for a function of a C++ source, which reads the memory of one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from custom_autograd.core.devices import error_of_devices
from custom_autograd.core.errors import KernelError, Origin
from custom_autograd.core.messages import advise, quote

HOST = "all tensors on one device; arguments of the function that are on the CPU are named with host="


class OneDevice:
    """Calls a function of a source that has kernels for other devices than the CPU.

    Native code calls them without this: only with tensors on one device, and leaves any other call to Python.
    """

    __slots__ = ("_function", "_host", "_names", "_origin")

    def __init__(self, function: Callable[..., Any], origin: Origin, names: Sequence[str], host: Sequence[str]) -> None:
        """Wrap the function.

        Args:
            function: of torch.ops (Any: what its schema says).
            origin: of the function.
            names: its arguments.
            host: those that may be on the CPU.

        Raises:
            KernelError: it has no such argument.
        """
        unknown = [name for name in host if name not in names]
        if unknown:
            problem = f"host= names {unknown[0]!r}, which is not an argument of the function"
            raise origin.error(KernelError, problem, expected=quote(names), do=advise(unknown[0], names))
        self._function, self._origin, self._names, self._host = function, origin, names, frozenset(host)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            KernelError: its tensors are on several devices.
        """
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        fixed = {name: value for name, value in given.items() if name not in self._host or not _is_on_cpu(value)}
        error = error_of_devices(self._origin, fixed, HOST)
        if error is not None:
            raise error
        return self._function(*args, **kwargs)


def _is_on_cpu(value: Any) -> bool:  # Any: an argument
    if isinstance(value, (list, tuple)):
        return all(map(_is_on_cpu, value))
    return isinstance(value, Tensor) and value.device.type == "cpu"
