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
        generate: generates the two below, once; to be called before they are read.
        call: the call of the flat op, where every argument is one of the schema.
        in_graphs: what `op(...)` runs while Dynamo traces it.
    """

    call: Call
    in_graphs: Call

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._observed: Call | None = None
        is_generated = False

        @constant_in_graphs
        def generate() -> None:
            nonlocal is_generated
            if not is_generated:
                with record.lock:
                    self.call = make_call(record, record.overload)
                    self.in_graphs = make_traced(record, self.call)
                    is_generated = True

        self.generate = generate

    @property
    def observed(self) -> Call:
        """Return the same call, as observers below Python see it."""
        with self._record.lock:
            self._observed = self._observed or make_call(self._record, self._record.observed)
        return self._observed
