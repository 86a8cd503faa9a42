"""A function in the Python that Numba compiles as a kernel: compiled at its first call, on arrays for tensors."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from custom_autograd.core.errors import KernelError, KernelUnavailable
from custom_autograd.core.locks import ThreadLock
from custom_autograd.kernels.lazy_kernel import LazyKernel
from custom_autograd.kernels.numpy import kernel_name, leaves, named_arguments, to_arrays, to_tensors

PARALLEL = ThreadLock()


def numba_kernel(
    function: Callable[..., Any] | None = None,
    *,
    fallback: Callable[..., Any] | None = None,
    **options: Any,  # Any: each of Numba's options has its own type
) -> Any:
    """Return a function that Numba compiles, to be registered as a CPU kernel; Numba is imported at the first call.

    It is compiled once per process for each combination of dtypes and numbers of dimensions. `cache=True` keeps what
    was compiled on disk: fast, and Numba does not notice when a function changes that this one calls in another file.

    Args:
        function: takes an array for each tensor of the op, and tuples for lists; see `numpy_kernel`. A single number
            has to be returned as an array: `numpy.array(total)`, because Numba makes a Python float of it.
        fallback: what runs instead where Numba is not installed, on tensors. Without one the call raises.
        options: those of `numba.njit`: `parallel=True`, `fastmath=True`, `boundscheck=True`. `nogil=True` is the
            default. Numba checks no index unless `boundscheck` says so, and a division by zero raises
            ZeroDivisionError unless `error_model="numpy"` says that it is infinite or NaN, as in PyTorch.

    Returns:
        The kernel; or, without a function, what makes one of it.

    Example:
        >>> @numba_kernel(fastmath=True)
        ... def total(x):
        ...     return numpy.array(x.sum())
        >>> total.options
        {'fastmath': True}
    """
    if function is None:
        return lambda found: NumbaKernel(found, fallback, options)
    return NumbaKernel(function, fallback, options)


class NumbaKernel(LazyKernel):
    """A function that Numba compiles; see `numba_kernel`."""

    def __init__(
        self, function: Callable[..., Any], fallback: Callable[..., Any] | None, options: dict[str, Any]
    ) -> None:
        super().__init__(kernel_name(function), fallback)
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options

    def __repr__(self) -> str:
        return f"numba_kernel({self.function!r})"

    def __reduce__(self) -> str:
        return str(self.function.__qualname__)  # a decorator replaced the function by this

    def load(self) -> Callable[..., Any]:
        """Return the function on tensors, to be compiled for the types of each call.

        Raises:
            KernelUnavailable: Numba is not installed, or cannot keep what it compiles with `cache=True`.
        """
        try:
            numba = importlib.import_module("numba")
            refused = importlib.import_module("numba.core.errors").NumbaError
        except ImportError as error:
            do = "pip install custom-autograd[numba], or pass fallback="
            raise KernelUnavailable(
                kernel_name(self.function), "the kernel needs Numba", found=str(error), do=do
            ) from error
        try:
            compiled = numba.njit(**{"nogil": True, **self.options})(self.function)
        except RuntimeError as error:  # Numba's, if it finds no folder that can be written
            if not self.options.get("cache"):
                raise
            do = "set NUMBA_CACHE_DIR to a folder that can be written, or leave out cache=True"
            problem = "Numba has no folder in which to keep the kernel"
            raise KernelUnavailable(kernel_name(self.function), problem, found=str(error), do=do) from error
        return functools.partial(self._run, compiled, refused)

    def _run(self, compiled: Callable[..., Any], refused: type[Exception], /, *args: Any, **kwargs: Any) -> Any:
        arrays = [immutable(value) for value in to_arrays(self.function, args, kwargs)]
        named = dict(zip(kwargs, arrays[len(args) :], strict=True))
        try:
            # Numba's own pool of threads ends the process if two threads enter it.
            with PARALLEL if self.options.get("parallel") else nullcontext():
                holder = [compiled(*arrays[: len(args)], **named)]
        except refused as error:
            do = "write the kernel in what Numba supports, or register it with when= for what it can take"
            found = "\n             ".join(str(error).strip().splitlines()[:12])
            problem = "Numba does not compile the kernel for these arguments"
            raise KernelError(kernel_name(self.function), problem, found=found, do=do) from error
        except (NotImplementedError, KeyError) as error:  # Numba's own, which are no NumbaError; or the kernel's
            if complaint := self._complaint(error, args, kwargs):
                raise complaint from error
            raise
        return to_tensors(self.function, holder, [arrays])

    def _complaint(self, error: Exception, args: Sequence[Any], kwargs: Mapping[str, Any]) -> KernelError | None:
        """Return what is wrong with a dtype or an option; None if the error is the kernel's own."""
        name = kernel_name(self.function)
        if isinstance(error, KeyError) and str(error.args[0]).startswith("Unrecognized options"):
            do = "options are those of numba.njit; see its documentation"
            return KernelError(name, "Numba does not know an option", found=str(error.args[0]), do=do)
        for label, value in named_arguments(self.function, args, kwargs):
            for array in leaves(to_arrays(self.function, (), {label: value})):
                if isinstance(error, NotImplementedError) and str(error) == str(array.dtype):
                    problem, found = f"Numba has no type for '{label}'", f"an array of {array.dtype}"
                    do = "let another kernel serve such tensors (when=), or convert it before"
                    return KernelError(name, problem, expected="a dtype that Numba has", found=found, do=do)
        return None


def immutable(value: Any) -> Any:
    """Return tuples for lists, which Numba copies."""
    if isinstance(value, list):
        return tuple(immutable(item) for item in value)
    return value
