"""Keeps Dynamo out of code that the dispatcher calls, and tells torch's compile caches what rules say.

- `torch._dynamo` must not be imported just because an op is called: that takes a second. `torch.compiler.disable`
  imports it. So a function is wrapped only once something else has loaded Dynamo.
- `torch.compiler.config.cache_key_tag` is public, but its module imports the compiler: it is set once that is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def is_compiler_loaded() -> bool:
    """Whether anything can have been compiled in this process."""
    return "torch._dynamo.eval_frame" in sys.modules


def outside_compilation(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose frames Dynamo never compiles: a kernel may do what no compiler understands."""
    wrapped: Callable[P, R] | None = None

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal wrapped
        if wrapped is None:
            if not is_compiler_loaded():
                return function(*args, **kwargs)
            wrapped = _disable(function)
        return wrapped(*args, **kwargs)

    return call


def _disable(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: any function
    import torch

    disabled: Callable[..., Any] = torch.compiler.disable(function)
    return disabled


class CacheTag:
    """The part of `torch.compiler.config.cache_key_tag` that stands for the rules of all ops.

    Sums are kept, so that the tag does not depend on the order in which ops are declared.
    """

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        self._total = 0
        self._written = ""

    def update(self, name: str, part: int) -> None:
        """Sets the share of one op, and writes the tag."""
        self._total = (self._total - self._parts.get(name, 0) + part) % 2**64
        self._parts[name] = part
        self._write()

    def _write(self) -> None:
        from torch.compiler import config

        rest = config.cache_key_tag.replace(self._written, "") if self._written else config.cache_key_tag
        self._written = f"|custom_autograd:{self._total:016x}"
        config.cache_key_tag = rest + self._written
