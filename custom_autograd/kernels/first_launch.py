"""Calls a function that was built for GPUs until it has run once: this GPU may refuse its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels.refused_launches import unavailable

Function = Callable[..., Any]  # Any: what the schema says


class FirstLaunch:
    """Stands for a function of a source until a call of it returns, or is refused.

    first call -> returns -> `succeed` takes what serves the calls from now on
                  the GPU refuses the code -> `fail` takes the reason, and returns what serves the call instead
    """

    __slots__ = ("_fail", "_function", "_name", "_succeed")

    def __init__(
        self, name: str, function: Function, succeed: Callable[[], None], fail: Callable[[KernelUnavailable], Function]
    ) -> None:
        self._name, self._function, self._succeed, self._fail = name, function, succeed, fail

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the function, or of what is called in its place.

        Raises:
            KernelUnavailable: if the GPU refuses the code, and there is no fallback, or it would read arguments that
                the function may have written to.
        """
        try:
            result = self._function(*args, **kwargs)
        except RuntimeError as error:
            reason = unavailable(self._name, error)
            if reason is None:
                raise
            instead = self._fail(reason)
        else:
            self._succeed()
            return result
        return instead(*args, **kwargs)
