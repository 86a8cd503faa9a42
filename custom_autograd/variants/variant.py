"""Variant: what `op.inplace` and `op.out` have in common. Each is an op of the dispatcher of its own.

A call without a kernel of its own is the op and a copy, and needs no dispatcher for that: so a graph of torch.compile
or torch.export holds the op itself, which whoever loads it has. The dispatcher's op is declared when it is asked for.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import torch
from torch import Tensor

from custom_autograd import declare
from custom_autograd.capabilities import kernels
from custom_autograd.containers.argument_tree import ArgumentTree
from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import DeclarationError, KernelError
from custom_autograd.core.lazy import Lazy
from custom_autograd.execution.call import make_public_call
from custom_autograd.execution.kernel_options import KernelOptions
from custom_autograd.registration import registry
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Fake
from custom_autograd.registration.rules import check_call
from custom_autograd.schema.schema import INPLACE, OUT, SUFFIXES, Schema, find_problem, variant_of
from custom_autograd.torch_private import transforms
from custom_autograd.torch_private.dispatch import HANDED_BACK, OpOverload

if TYPE_CHECKING:
    from custom_autograd.verification.report import Report


Metadata: TypeAlias = tuple[tuple[torch.Size, torch.dtype], ...]
MOST = 256  # calls that are remembered for each variant


class Expected:
    """The shapes and dtypes of one op's visible outputs, by what it is called with."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._known: dict[Hashable, Metadata | None] = {}

    def find(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Metadata | None:  # Any: the op's arguments
        """Return shape and dtype of each visible output, or None if they depend on data."""
        rule = self._record.registrations.fake
        function = self._record.reference() if rule is None else rule.function
        if function is None:
            raise self._missing()
        key = (function, _key(args), _key(tuple(kwargs.items())))
        try:
            return self._known[key]
        except KeyError:
            pass
        except TypeError:  # an argument cannot be hashed
            return self._ask(function, args, kwargs)
        if len(self._known) >= MOST:
            self._known = {}
        found = self._known[key] = self._ask(function, args, kwargs)
        return found

    def _ask(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Metadata | None:
        try:
            with torch.no_grad():
                result = function(*_without_data(args), **{k: _without_data(value) for k, value in kwargs.items()})
        except Exception:  # noqa: BLE001 - a fake that needs data says so with any error; the op itself then runs
            return None
        outputs = self._record.declaration.schema.outputs
        results = result if isinstance(result, (tuple, list)) else (result,)
        if len(results) != len(outputs) or not all(isinstance(one, Tensor) for one in results):
            return None
        pairs = zip(outputs, results, strict=True)
        return tuple((one.shape, one.dtype) for output, one in pairs if not output.is_hidden)

    def _missing(self) -> KernelError:
        return KernelError(
            self._record.name,
            "a kernel of a variant runs only where the result fits, and nothing tells the shape of the result",
            expected="a fake or a reference of the op",
            declared=self._record.declaration.location,
            do="register_fake for the op",
        )


def _key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_key, value))
    return type(value), value


def _without_data(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_without_data(item) for item in value]
    return value


F = TypeVar("F", bound=Callable[..., Any])


class Variant:
    """One variant of an op; an attribute of the op, not to be made by hand.

    Attributes:
        kind: "inplace" or "out".
        op: the entry of the op.
    """

    kind: ClassVar[str]

    def __init__(self, op: OpRecord) -> None:
        self.op = op
        self._expected = Expected(op)
        self._direct: Callable[..., Any] | None = None  # Any: takes and returns what the schema says
        self._public: Callable[..., Any] | None = None  # Any: as above

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), *declare.pickled(self.op))

    def __deepcopy__(self, memo: dict[int, Any]) -> Variant:
        return self

    def __copy__(self) -> Variant:
        return self

    @property
    def name(self) -> str:
        """Return the qualified name of the dispatcher's op: "ns::op_" or "ns::op_out"."""
        return str(self.op.dispatcher_name.suffixed(SUFFIXES[self.kind]))

    @property
    def schema(self) -> Schema:
        """Return arguments and outputs; those written to are marked."""
        return self._record.declaration.schema

    @property
    def overload(self) -> OpOverload:
        """Return the dispatcher's op, such as `torch.ops.namespace.name_.default`."""
        assert self._record.overload is not None
        return self._record.overload

    @property
    def kernels(self) -> dict[str, str]:
        """Return the file and line of each kernel of its own, by device type; empty if it is the op and a copy."""
        kernels, derived = self._record.kernels, self._record.declaration.function
        return {name or "default": one.location for name, one in kernels.items() if one.given is not derived}

    @property
    def _record(self) -> OpRecord:
        """Return what was declared and registered for it; declared now, if it was not.

        Raises:
            DeclarationError: the op can have no such variant, or another op has the name.
        """
        found = self._find_record()
        if found is None:
            with registry.one_declaration_at_a_time():
                found = self.op.variants[self.kind] = self._find_record() or self._declare()
        return found

    def _find_record(self) -> OpRecord | None:
        found = self.op.variants.get(self.kind)
        return None if found is None or found.library is None else found  # it was taken back

    @Lazy
    def _problem(self) -> str | None:
        """Return why the op can have no such variant, or None."""
        return find_problem(self.op.declaration.schema, self.kind) or _find_container(self.op, self.kind)

    def refuse_if_impossible(self) -> None:
        """Raise where the op can have no such variant.

        Raises:
            DeclarationError: it cannot.
        """
        if self._problem is not None:
            raise DeclarationError(
                self.op.name,
                f"the op can have no {_LABELS[self.kind]} variant: {self._problem}",
                expected=_EXPECTED[self.kind],
                found=self.op.declaration.schema.text,
                declared=self.op.declaration.location,
                do="call the op itself",
            )

    @typing.overload
    def register_kernel(
        self, device_types: str | tuple[str, ...] | None, fn: None = None, /, *, replace: bool = False
    ) -> Callable[[F], F]: ...
    @typing.overload
    def register_kernel(self, device_types: str | tuple[str, ...] | None, fn: F, /, *, replace: bool = False) -> F: ...
    def register_kernel(
        self,
        device_types: str | tuple[str, ...] | None,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        replace: bool = False,
    ) -> Any:
        """Register a kernel that writes the result where it belongs.

        It runs where no gradient is recorded, and the tensors that it writes to fit the result as they are: elsewhere
        the variant is the op and a copy.

        Args:
            device_types: such as "cpu" or ("cpu", "cuda"); None for every one.
            fn: takes the op's arguments, an out variant's also `out` (or the names of the outputs) by keyword; returns
                what it wrote to, or None.
            replace: the device type may have a kernel.

        Returns:
            `fn`, or a decorator.

        Raises:
            RegistrationError: the parameters do not fit the schema, the device type is unknown or taken.
        """

        def decorate(function: F) -> F:
            with declare.all_or_nothing():
                record = self._record
                is_derived = device_types is None and record.kernels[None].given is record.declaration.function
                check_call(record.declaration, f"kernel of the {_LABELS[self.kind]} variant", function)
                guarded = self._guarded(function)
                kernels.register(record, device_types, guarded, KernelOptions(), replace=replace or is_derived)
            record.has_own_kernels = True
            return function

        return decorate if fn is None else decorate(fn)

    def check(self, *, seed: int = 0, raise_on_failure: bool = True) -> Report:
        """Check on the op's samples that its variants and the op agree.

        Raises:
            CheckError: they do not.
        """
        from custom_autograd.verification import check as checking  # verification is not loaded before it is asked for

        return checking.check(self.op, checks=["parity"], seed=seed, raise_on_failure=raise_on_failure)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # Any: as the schema says, here and below
        """Return its own kernels by way of the dispatcher, or directly; else the op and a copy."""
        self.refuse_if_impossible()
        record = self.op.variants.get(self.kind)
        if record is None or not record.has_own_kernels:
            return self._compose(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            assert record.dispatched is not None
            record.dispatched.generate()
            return record.dispatched.in_graphs(*args, **kwargs)
        if transforms.is_transforming():
            return self._compose(*args, **kwargs)
        if self._direct is None:
            self._direct = make_public_call(record)
        return self._direct(self, *args, **kwargs)

    def _call_op(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the op as users call it; where that might return an argument as it is, by way of the dispatcher."""
        if torch.compiler.is_dynamo_compiling() or self.op.declaration.schema.may_return_inputs:
            assert self.op.dispatched is not None
            self.op.dispatched.generate()
            return self.op.dispatched.in_graphs(*args, **kwargs)
        if self._public is None:
            self._public = make_public_call(self.op)
        return self._public(self, *args, **kwargs)

    def _compose(self, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _guarded(self, function: F) -> F:
        raise NotImplementedError

    def _declare(self) -> OpRecord:
        self.refuse_if_impossible()
        op, dispatcher_name = self.op.declaration, self.op.dispatcher_name
        if adapter_of(op).has_containers:
            raise DeclarationError(
                self.op.name,
                f"the {_LABELS[self.kind]} variant of an op with containers has neither an overload nor kernels",
                found=op.schema.text,
                declared=op.location,
                do="call it: it is the op, then a copy",
            )
        name = dispatcher_name.suffixed(SUFFIXES[self.kind])
        taken = registry.find_record(str(name))
        tags = tuple(tag for tag in HANDED_BACK if tag.name == self.kind)
        composition = functools.partial(self._compose)
        declaration = Declaration(
            name,
            variant_of(op.schema, self.kind),
            composition,
            op.location,
            None,
            tags,
            is_reference=False,
            composition=composition,
        )
        is_old = taken is not None and taken.declaration.composition is not None  # of an op that was replaced
        record = declare.define(declaration, Fake(op.location, composition), replace=is_old)
        record.modules = self.op.modules
        return record


def _find_container(op: OpRecord, kind: str) -> str | None:
    """Return the container that rules out a variant, or None."""
    return adapter_of(op.declaration).around("", lambda tree, _: _container_in(tree, kind)) or None


def _container_in(tree: ArgumentTree, kind: str) -> str:
    if tree.results is not None:
        return "it returns a container"
    return "its first argument is a container" if kind == INPLACE and not tree.is_plain(0) else ""


def _restore(cls: type[Variant], name: str, modules: str | tuple[str, ...]) -> Variant:
    """Return how a variant is unpickled: by the name of its op, after importing the module that declares it."""
    return cls(declare.find_or_import(name, modules))


_LABELS = {INPLACE: "in-place", OUT: "out"}
_EXPECTED = {
    INPLACE: "a tensor as first argument and one tensor as output, of new memory",
    OUT: "outputs that are tensors, of new memory",
}
