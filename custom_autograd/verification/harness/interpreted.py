"""Find out if Triton's interpreter runs the kernels of a call: its limits are not faults of an op.

`triton.runtime.interpreter.GridExecutor` is private: with TRITON_INTERPRET=1 every launch is a call of one. It changes
`triton.language` while it runs, so that two threads disturb each other, takes memory from tensors, which a graph has
none of, and calculates in bfloat16 with the bits of the numbers (found in Triton 3.9).
"""

import contextlib
import sys
from collections.abc import Callable
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


INTERPRETED = "its kernels run in Triton's interpreter"
