"""DispatchedCalls: the calls of one op by way of the dispatcher, generated when they are first made or traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
        self._call: Call | None = None
        self._observed: Call | None = None
        self._traced: Call | None = None

        @constant_in_graphs
        def generate() -> bool:
            if self._traced is None:
                with record.lock:
                    self._call = make_call(record, record.overload)
                    self._traced = make_traced(record, self._call)
            return True

        def in_graphs(*args: Any, **kwargs: Any) -> Any:
            generate()
            return self._traced(*args, **kwargs)  # type: ignore[misc]  # it was generated

        self._generate = generate
        self.in_graphs = in_graphs

    @property
    def call(self) -> Call:
        """Return the call of the flat op, where every argument is one of the schema."""
        self._generate()
        assert self._call is not None  # it was generated
        return self._call

    @property
    def observed(self) -> Call:
        """Return the same call, as observers below Python see it."""
        with self._record.lock:
            self._observed = self._observed or make_call(self._record, self._record.observed)
        return self._observed
