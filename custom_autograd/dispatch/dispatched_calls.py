"""DispatchedCalls: the calls of one op by way of the dispatcher, generated when they are first made or traced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from custom_autograd.core.once import Once
from custom_autograd.dispatch.call import make_call, make_traced
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.compiler import constant_in_graphs

Call = Callable[..., Any]  # Any: takes and returns what the schema says


class DispatchedCalls:
    """The calls of one op by way of the dispatcher.

    Dynamo may be the first to ask for them. It cannot trace what generates code, so it runs that as a constant, and
    traces what was generated.

    Attributes:
        in_graphs: what `op(...)` runs while Dynamo traces it.
    """

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._traced: Call | None = None

        @constant_in_graphs
        def generate() -> bool:
            if self._traced is None:
                with record.lock:
                    self._traced = make_traced(record, make_call(record, record.overload))
            return True

        def in_graphs(*args: Any, **kwargs: Any) -> Any:
            generate()
            return self._traced(*args, **kwargs)  # type: ignore[misc]  # it was generated

        self.in_graphs = in_graphs

    @Once
    def observed(self) -> Call:
        """The call of the flat op, where every argument is one of the schema, as observers below Python see it."""
        return make_call(self._record, self._record.observed)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Return the lock of the op; it is held while a call is generated."""
        return self._record.lock
