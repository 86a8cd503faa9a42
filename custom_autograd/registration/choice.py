"""Choice: one of several kernels for each call, the first that accepts the arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from custom_autograd.core.errors import KernelUnavailable

if TYPE_CHECKING:
    from custom_autograd.registration.kernel import Kernel
    from custom_autograd.registration.kernels import Kernels

Function = Callable[..., Any]  # Any: takes and returns what the schema says


class Choice:
    """Runs the first kernel that accepts the arguments; it is called as kernels are.

    Attributes:
        watch: makes a kernel one whose call is checked in full; None if nothing is checked.
    """

    def __init__(self, kernels: Kernels, device_type: str | None) -> None:
        self._kernels = kernels
        self._device_type = device_type
        self._here = threading.local()
        self._seen: set[Kernel] = set()
        self.watch: Callable[[Function], Function] | None = None

    @property
    def last(self) -> Kernel | None:
        """Return the kernel that ran last in this thread, for messages."""
        return getattr(self._here, "kernel", None)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: what the schema says
        """Return what that kernel returns.

        Raises:
            KernelError: none accepts them; the message says why.
        """
        refusals: dict[Kernel, str] = {}
        for kernel in self._kernels.candidates(self._device_type):
            reason = None if kernel.when is None else kernel.when.refusal(args, kwargs)
            if reason is not None:
                refusals[kernel] = reason
                continue
            self._here.kernel = kernel
            try:
                result = self._function_of(kernel)(*args, **kwargs)
            except KernelUnavailable as error:
                if self._kernels.wanted() is not None:
                    raise
                self._kernels.pass_over(kernel, error)
                continue
            self._seen.add(kernel)
            self._kernels.trust(kernel)
            return result
        raise self._kernels.none_accepts(self._device_type, refusals)

    def _function_of(self, kernel: Kernel) -> Function:
        """Return the kernel, checked in full at its first call: its direct call may have been proven with another."""
        if self.watch is None or kernel in self._seen:
            return kernel.function
        return self.watch(kernel.function)
