"""Whether a kernel may compute gradients itself; its code is read, since a run may not come to it.

Native code runs kernels below autograd, where a call such as `torch.autograd.functional.jacobian` would return zeros
(NOTE [kernels run below autograd] in native/source/running.h). Kernels run with grad mode off; so one that computes
gradients names what switches it on. `torch.func` works there, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from custom_autograd.core.code_names import is_filled, names_in

NAMES = frozenset({"autograd", "enable_grad", "set_grad_enabled"})
HARMLESS = ("no_grad", "inference_mode")
READ = (FunctionType, MethodType, staticmethod, classmethod, functools.partial, type)
"""What is looked into; other values that code names might be anything, and asking them could have effects."""
MOST = 200
"""Values that are looked at."""


def may_use_autograd(function: Callable[..., Any]) -> bool:  # Any: of any signature
    """Return True if a kernel, or a function that it reaches, names what computes gradients.

    Args:
        function: the kernel; one of another language names nothing.
    """
    waiting: list[Any] = [function if type(function) in READ else type(function)]
    seen = set[int]()
    while waiting and len(seen) < MOST:
        value = waiting.pop()
        if type(value) not in READ or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (FunctionType, type)) and _is_of("torch", value.__module__):
            if _is_of("torch.autograd", value.__module__) and value.__name__ not in HARMLESS:
                return True
        elif isinstance(value, FunctionType) and not NAMES.isdisjoint(names_in(value.__code__)):
            return True
        else:
            waiting += _reached_by(value)
    return False


def _reached_by(value: Any) -> Iterator[Any]:  # Any: one of READ; of any type
    """Yield the values that a wrapper wraps, that a class defines, or that a function's code names."""
    if isinstance(value, functools.partial):
        yield value.func
    elif isinstance(value, type):
        yield from vars(value).values()
    elif isinstance(value, FunctionType):
        yield from _named(value, names_in(value.__code__))
    else:
        yield from (value.__func__, type(getattr(value, "__self__", None)))


def _named(function: FunctionType, names: frozenset[str]) -> Iterator[Any]:  # Any: of any type
    """Yield the values of globals, of attributes of modules, and of cells."""
    for name in names:
        value = function.__globals__.get(name)
        yield value
        if type(value) is ModuleType and not _is_of("torch", value.__name__):
            yield from map(vars(value).get, names)
    yield from (cell.cell_contents for cell in function.__closure__ or () if is_filled(cell))


def _is_of(package: str, module: object) -> bool:
    return isinstance(module, str) and (module == package or module.startswith(f"{package}."))
