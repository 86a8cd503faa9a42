"""KernelCode: the generated kernel at each backend's dispatch key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.calls import kernel_call
from custom_autograd.calls.parameters import own_names, values_of
from custom_autograd.calls.source import Source, compile_source
from custom_autograd.dispatch import direct_source as direct
from custom_autograd.dispatch.call import write_kernel
from custom_autograd.registration.registry import OpRecord
from custom_autograd.values.results import ResultReader


class KernelCode:
    """The kernel of one op for all backends.

    Attributes:
        source: its text.
        call: (device, *args, **kwargs) -> what the schema says (Any).
    """

    def __init__(self, record: OpRecord, choose: Callable[..., Any], *, is_checked: bool) -> None:
        declaration = record.declaration
        source = Source(own_names(declaration.schema, declaration.name.name))
        write_kernel(source, declaration.schema, is_checked=is_checked)
        self.source = source.text
        helpers = {
            **direct.helpers(),
            **values_of(declaration),
            "choose": choose,
            **kernel_call.helpers(record),
            "read_result": ResultReader(declaration, record.kernels.describe).read,
        }
        namespace = compile_source(self.source, f"{record.name} kernel", source.namespace(helpers))
        self.call: Callable[..., Any] = namespace[source.own("kernel")]
