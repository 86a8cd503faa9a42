"""Caches what the fake of an op returned, as long as everything that its code reads is unchanged.

A fake takes up to 0.1 ms, and a kernel of a variant asks for the metadata of the results in each call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Generic, TypeVar

import torch

from custom_autograd.capabilities.compile_cache import OWN_AND_TORCHS
from custom_autograd.core.read_values import OF_TORCH, imports_in, package_of, referenced, root_of, words_in
from custom_autograd.torch_private.dispatch import is_any_autocast_enabled

MOST = 256
"""Calls whose results are known."""
T = TypeVar("T")


class KnownFakes(Generic[T]):
    """Runs a fake, unless it is known what it returns for these arguments.

    Args:
        run: takes a fake and arguments, and returns the metadata of the results.
    """

    def __init__(self, run: Callable[..., T]) -> None:
        self._run = run
        self._known = functools.lru_cache(MOST)(lambda state, *call: run(*call))

    def __call__(self, fake: Callable[..., Any], *call: Any) -> T:  # Any: what the schema declares
        """Return the metadata of the results."""
        state = state_of_fake(fake)
        if state is not None:
            try:
                return self._known(state, fake, *call)
            except TypeError:  # an argument cannot be hashed
                pass
        return self._run(fake, *call)


def state_of_fake(fake: Callable[..., Any]) -> Hashable:
    """Return all that decides what a fake does with its arguments; None if some of that may change in place."""
    if is_any_autocast_enabled():
        return None
    state: list[Any] = [torch.get_default_dtype()]
    functions: dict[Callable[..., Any], None] = {}
    waiting = [fake]
    while waiting:
        function = waiting.pop()
        if type(function) is not FunctionType or vars(function) or not _reads_by_name_only(function):
            return None
        functions[function] = None
        state.append(function.__code__)
        for value in referenced(function, words_in(function.__code__)):
            if type(value) in UNCHANGING or isinstance(value, OF_TORCH) or _is_of_torch_or_python(value):
                state.append((type(value), value))
            elif type(value) is not FunctionType or value not in functions:
                waiting.append(value)
    return tuple(state)


def _reads_by_name_only(function: FunctionType) -> bool:
    imported: Sequence[str] = imports_in(function.__code__)
    is_free = words_in(function.__code__).isdisjoint(("environ", "environb", "getenv", "globals"))
    return is_free and all(root_of(name) in OWN_AND_TORCHS for name in imported)


def _is_of_torch_or_python(value: Any) -> bool:  # Any: whatever a fake reads
    if isinstance(value, ModuleType):
        return root_of(value.__name__) in OWN_AND_TORCHS
    return isinstance(value, (type, FunctionType, BuiltinFunctionType)) and package_of(value) in OWN_AND_TORCHS


UNCHANGING = (bool, int, float, complex, str, bytes, range, type(None))
