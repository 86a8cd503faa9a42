"""on_backward_end: calls a function when the backward in progress ends.

PyTorch's engine calls what it is given after the last gradient, and drops it if the backward fails. What it is given
here is an object: if that dies without having been called, the backward has failed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from custom_autograd.core.errors import GradientError
from custom_autograd.core.messages import show
from custom_autograd.torch_private import nodes

F = TypeVar("F", bound=Callable[[], Any])
WHEN = ("success", "always")


def on_backward_end(fn: F, when: Literal["success", "always"] = "success") -> F:
    """Call a function once when the backward pass in progress ends.

    It may be called in hooks of tensors and nodes, in gradient rules, and in functions that run at the end themselves.
    An op whose rule calls it cannot be compiled, and fails the check `side_effects`.
    A backward within a backward has an end of its own, before that of the outer one. Functions run in the order in
    which they were given; one that is given several times in one backward runs once. An exception of a function leaves
    the backward; after it, functions with `when="always"` still run.

    Args:
        fn: takes no arguments; what it returns is ignored.
        when: "success": after a backward that computed its gradients; "always": after one that failed, too, before the
            exception reaches the caller. An exception of `fn` after a failure goes to `sys.unraisablehook`.

    Returns:
        `fn`, so that this can decorate a function within a rule or a hook.

    Raises:
        GradientError: no backward is in progress; or it is traced by a compiler: the graph would not hold the call.
        TypeError: `fn` is not callable.
        ValueError: `when` is neither of the two.

    Example:
        >>> import torch
        >>> from custom_autograd import on_backward_end
        >>> x = torch.ones(2, requires_grad=True)
        >>> y = (x * 2).sum()
        >>> _ = y.register_hook(lambda grad: on_backward_end(lambda: print(x.grad)) and None)
        >>> y.backward()
        tensor([2., 2.])
    """
    if not callable(fn):
        raise TypeError(f"on_backward_end takes a function without arguments, and not {show(fn)}")
    if when not in WHEN:
        raise ValueError(f'on_backward_end: when is "success" or "always", and not {show(when)}')
    _refuse_outside()
    _end_of(nodes.current_task()).add(fn, is_always=when == "always")
    return fn


class End:
    """The functions that run when one backward ends. The engine holds the only reference to it."""

    def __init__(self) -> None:
        self._functions: dict[Any, tuple[Callable[[], Any], bool]] = {}
        self._is_over = False

    def add(self, function: Callable[[], Any], *, is_always: bool) -> None:
        """Add a function, unless it is there; of one that is there, the wider `when` holds."""
        key = _key(function)
        _, was_always = self._functions.get(key, (function, False))
        self._functions[key] = function, is_always or was_always

    def __call__(self) -> None:
        """Run the functions after a backward without an error."""
        self._is_over = True
        _ENDS.pop(nodes.current_task(), None)  # what a function adds now runs afterwards
        first: BaseException | None = None
        for function, is_always in self._functions.values():
            if first is not None and not is_always:
                continue
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - raised below, when the others have run
                error.__context__ = first
                first = error
        if first is not None:
            raise first  # the last one, and those before it as its context

    def __del__(self) -> None:
        """Run what is to run after a failure, too."""
        if self._is_over:
            return
        for function, is_always in self._functions.values():
            if is_always:
                AfterFailure(function)


class AfterFailure:
    """Calls a function as a finalizer does, at once: an exception of it goes to `sys.unraisablehook`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __del__(self) -> None:
        self._function()


_ENDS: weakref.WeakValueDictionary[int, End] = weakref.WeakValueDictionary()  # by backward: PyTorch gives only a number
_LOCK = threading.Lock()


def _end_of(task: int) -> End:
    """Return the end of a backward; nodes on several devices may ask at the same time."""
    with _LOCK:
        end = _ENDS.get(task)
        if end is None:
            end = _ENDS[task] = End()
            nodes.queue_callback(end)
        return end


def _key(function: Callable[[], Any]) -> Any:  # Any: the function, if it can be a key
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function


def _refuse_outside() -> None:
    if nodes.is_recorded():
        raise GradientError(
            "on_backward_end",
            "the backward is traced by a compiler, and the graph would not hold the call",
            do="call it in a hook of a tensor outside of compiled code, or in the rule of an op that is not compiled",
        )
    if nodes.current_task() == nodes.NONE:
        raise GradientError(
            "on_backward_end",
            "there is no backward in progress in this thread",
            do="call it in a gradient rule, or in a hook of a tensor or a node",
        )
