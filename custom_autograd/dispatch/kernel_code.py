"""KernelCode: the generated kernel at each backend's dispatch key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.calls import kernel_call
from custom_autograd.calls.parameters import own_names, values_of
from custom_autograd.calls.source import Source, compile_source
from custom_autograd.dispatch.call import write_kernel
from custom_autograd.dispatch.names_in_source import shared_names
from custom_autograd.dispatch.sharing import share_or_copy
from custom_autograd.registration.registry import OpRecord
from custom_autograd.values.results import ResultReader

Function = Callable[..., Any]  # Any: takes and returns what the schema says


class KernelCode:
    """The kernel of one op for all backends.

    Args:
        record: the op.
        watch: makes a function one whose call is checked in full, for the first call of each kind; None for none.
        is_checked: results are looked at.

    Attributes:
        source: its text.
    """

    def __init__(self, record: OpRecord, watch: Callable[[Function], Function] | None, *, is_checked: bool) -> None:
        declaration = record.declaration
        source = Source(own_names(declaration.schema, declaration.name.name))
        write_kernel(source, declaration.schema, is_checked=is_checked, is_watched=watch is not None)
        self.source = source.text
        helpers = {
            **shared_names(),
            **values_of(declaration),
            "watch": watch,
            "entry": record,
            **kernel_call.helpers(record),
            "read_result": ResultReader(declaration, record.kernels.describe, share=share_or_copy).read,
        }
        namespace = compile_source(self.source, f"{record.name} kernel", source.namespace(helpers))
        self._make: Callable[[Function], Function] = namespace[source.own("kernel_of")]
        self._made: dict[int, tuple[Function, Function]] = {}  # by id: some functions cannot be hashed

    def around(self, function: Function) -> Function:
        """Return what runs at the key of a device type that a function serves: the same for the same function."""
        found = self._made.get(id(function))
        if found is None:
            found = self._made[id(function)] = function, self._make(function)
        return found[1]
