"""Handle: what an op is as an object: its class and signature, how it is copied and shown, and facts to read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from custom_autograd import declare
from custom_autograd.core.lazy import Lazy
from custom_autograd.execution.generated import generated_code_of, source_of
from custom_autograd.kernels import native_kernels
from custom_autograd.opdef import OpDef
from custom_autograd.registration import dispatcher_library as library
from custom_autograd.registration.registry import OpRecord, one_declaration_at_a_time
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private.dispatch import OpOverload

if TYPE_CHECKING:
    from custom_autograd.variants import InplaceVariant, OutVariant

H = TypeVar("H", bound="Handle")


class Handle(OpDef):
    """An op as an object; `CustomOp` adds what its author and its users call."""

    def __new__(cls: type[H], record: OpRecord) -> H:
        """Return an instance of a new subclass, which gets the `__call__` that is generated for the op."""
        own = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__slots__": native_kernels.SLOTS})
        return cast(H, object.__new__(own))

    def __init__(self, record: OpRecord) -> None:
        self._record, self._hash = record, hash(record.overload)
        function = record.declaration.function
        functools.update_wrapper(self, function, updated=())
        self.__name__ = getattr(function, "__name__", record.declaration.name.name)
        self.__signature__ = declare.signature_of(record)
        with record.lock:
            record.uncalled.add(self)
        if record.handle is None:
            with one_declaration_at_a_time():  # another thread may replace the op: torch must not find it half attached
                record.handle = self
                library.publish(record)

    def __eq__(self, other: object) -> bool:
        """Return True for this op and for its overload, which policies of selective checkpointing are asked about."""
        return self is other or (isinstance(other, OpOverload) and other is self._record.overload)

    def __hash__(self) -> int:
        """Return the hash of the overload that the op had when this handle was made: a set may hold either."""
        return self._hash

    def __repr__(self) -> str:
        return f"<CustomOp {self._record.name}{self._record.declaration.schema.text}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: name, schema, capabilities, kernels and generated source."""
        from custom_autograd.verification.report import html  # only a notebook needs it

        record = self._record
        capabilities, kernels = declare.capabilities(record), record.kernels.listed()
        location = record.declaration.location
        return html.format_op(
            record.name, record.declaration.schema.text, location, capabilities, kernels, source_of(record)
        )

    def __deepcopy__(self: H, memo: dict[int, Any]) -> H:
        return self

    def __copy__(self: H) -> H:
        return self

    @property
    def name(self) -> str:
        """Return the qualified name, "namespace::name"."""
        return self._record.name

    @property
    def schema(self) -> Schema:
        """Return arguments and outputs, with names, types, mutability and differentiability."""
        return self._record.declaration.schema

    @property
    def overload(self) -> OpOverload:
        """Return the dispatcher's op, `torch.ops.namespace.name.default`; it returns hidden outputs too."""
        assert self._record.overload is not None
        return self._record.overload

    @property
    def inplace(self) -> InplaceVariant:
        """Return the variant `op.inplace(x, ...)`, which writes the result into its first argument and returns that.

        Raises:
            DeclarationError: the op can have none; the message says why.
        """
        return self._inplace

    @property
    def out(self) -> OutVariant:
        """Return the variant `op.out(..., out=tensor)`, which writes the results into tensors of the caller.

        Raises:
            DeclarationError: the op can have none; the message says why.
        """
        return self._out

    @Lazy
    def _inplace(self) -> InplaceVariant:
        from custom_autograd.variants import InplaceVariant  # loaded for ops whose variants are used

        return InplaceVariant(self._record)

    @Lazy
    def _out(self) -> OutVariant:
        from custom_autograd.variants import OutVariant  # as above

        return OutVariant(self._record)

    @property
    def function(self) -> type[torch.autograd.Function]:
        """Return the generated `torch.autograd.Function`, with `setup_context`."""
        return generated_code_of(self._record).recording.function

    @property
    def source(self) -> str:
        """Return the generated Python source of the wrapper, the Function and the kernels' frame."""
        return source_of(self._record)

    @property
    def reference(self) -> Callable[..., Any] | None:  # Any: takes and returns what the schema says
        """Return the computation in differentiable PyTorch operations: a decomposition of `overload`; or None.

        It is the decorated function of an op declared with `reference=True`, or that of `register_reference`; where
        arguments are containers, it takes what the schema has for them.
        """
        return self._record.reference()

    @property
    def kernels(self) -> dict[str, str]:
        """Return the file and line of the kernels, by device type; the default kernel is under "default".

        Where there are several for a device type, they stand in the order in which they are tried, by name.
        """
        return self._record.kernels.listed()
