"""Find out if Triton's interpreter runs the kernels of a call: its limits are not faults of an op.

`triton.runtime.interpreter.GridExecutor` is private: with TRITON_INTERPRET=1 every launch is a call of one. It changes
`triton.language` while it runs, so that two threads disturb each other, takes memory from tensors, which a graph has
none of, and calculates in bfloat16 with the bits of the numbers (found in Triton 3.9).
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from custom_autograd.kernels.launches import is_interpreted
from custom_autograd.values.random_state import kept_random_state


def find_interpreter(work: Callable[[], object]) -> str | None:
    """Return what to say of work that launches interpreted kernels, whatever it raises; None if it launches none."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or not is_interpreted():
        return None
    own = interpreter.GridExecutor.__call__
    launches: list[object] = []

    def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:  # Any: Triton has no types here
        launches.append(executor)
        return own(executor, *args, **kwargs)

    patch = mock.patch.object(interpreter.GridExecutor, "__call__", launch)
    with patch, kept_random_state(), contextlib.suppress(Exception):
        work()
    return INTERPRETED if launches else None


@contextlib.contextmanager
def touched_addresses() -> Iterator[list[Any]]:  # Any: arrays of NumPy
    """Yield a list that gets the addresses at which interpreted kernels read and write within, where no mask is off.

    `triton.runtime.interpreter._interpreter` is private: every access to memory is a call of one of its functions.
    """
    interpreter = sys.modules.get("triton.runtime.interpreter")
    own = vars(interpreter).get("_interpreter") if interpreter is not None and is_interpreted() else None
    found: list[Any] = []
    if own is None:
        yield found
        return
    with mock.patch.object(interpreter, "_interpreter", _Watched(own, found)):
        yield found


class _Watched:
    """A module whose functions also record the addresses that they are given."""

    def __init__(self, module: Any, found: list[Any]) -> None:  # Any: Triton has no types here
        self._module, self._found = module, found

    def __getattr__(self, name: str) -> Any:  # Any: as above
        function = getattr(self._module, name)
        position = MASKS.get(name)
        if position is None:
            return function

        def watched(*args: Any) -> Any:
            pointers = args[1 if name == "atomic_rmw" else 0]
            self._found.append(pointers[args[position].astype(bool)] if position else pointers.reshape(-1))
            return function(*args)

        return watched


MASKS = {"load": 1, "store": 2, "atomic_rmw": 3, "atomic_cas": 0}
"""Function -> the position of its mask; 0 if it has none."""

INTERPRETED = "its kernels run in Triton's interpreter"
