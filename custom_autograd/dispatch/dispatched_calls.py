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

    Attributes:
        in_graphs: what `op(...)` runs while Dynamo traces it. Dynamo cannot trace the code that generates other code,
            so this function runs it as a constant and then calls what was generated.
    """

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._traced: Call | None = None

        @constant_in_graphs
        def generate() -> bool:
            if self._traced is None:
                self._traced = make_traced(record, self.call)
            return True

        def in_graphs(*args: Any, **kwargs: Any) -> Any:
            generate()
            return self._traced(*args, **kwargs)  # type: ignore[misc]  # it was generated

        self.in_graphs = in_graphs

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Return the lock of the op; it is held while `call` is generated."""
        return self._record.lock

    @Once
    def call(self) -> Call:
        """The call of the flat op, where every argument is one of the schema."""
        return make_call(self._record)
