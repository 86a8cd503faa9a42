"""Variant: the common part of `op.inplace` and `op.out`, each of which is also an op of the dispatcher.

A call without a registered kernel is the op and a copy, and needs no dispatcher for that: so a graph of torch.compile
or torch.export holds the op itself, which whoever loads it has. The dispatcher's op is declared when it is asked for.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.fx import Proxy

from custom_autograd import declare
from custom_autograd.capabilities import kernel_rules
from custom_autograd.containers.argument_tree import ArgumentTree
from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.decorators import or_decorator_for
from custom_autograd.core.errors import DeclarationError, KernelError, Origin
from custom_autograd.execution.call import make_public_call
from custom_autograd.execution.kernel_options import KernelOptions
from custom_autograd.registration import registry
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import FakeRule
from custom_autograd.registration.rules import check_call
from custom_autograd.schema.schema import INPLACE, OUT, SUFFIXES, Schema, find_problem, out_names, variant_of
from custom_autograd.torch_private import transforms
from custom_autograd.torch_private.dispatch import HANDED_BACK, OpOverload
from custom_autograd.values.tensors import do_overlap, first_tensor, tensors_in
from custom_autograd.variants.known_fakes import KnownFakes

if TYPE_CHECKING:
    from custom_autograd.verification.report import Report


F = TypeVar("F", bound=Callable[..., Any])
Metadata: TypeAlias = tuple[tuple[torch.Size, torch.dtype], ...]


class Variant(ABC):
    """One variant of an op; an attribute of the op, not to be made by hand.

    Attributes:
        kind: "inplace" or "out".
        label: the kind in the words of messages.
        expected: which ops have such a variant, for messages.
        op: the record of the op.
    """

    kind: ClassVar[str]
    label: ClassVar[str]
    expected: ClassVar[str]

    def __init__(self, op: OpRecord) -> None:
        """Raise DeclarationError if the op can have no such variant."""
        container = adapter_of(op.declaration).around("", lambda tree, _: _container_in(tree, self.kind))
        problem = find_problem(op.declaration.schema, self.kind) or container
        if problem:
            raise op.declaration.error(
                DeclarationError,
                f"the op can have no {self.label} variant: {problem}",
                expected=self.expected,
                found=op.declaration.schema.text,
                do="call the op itself",
            )
        self.op = op
        self._direct: Callable[..., Any] | None = None  # Any: takes and returns what the schema declares

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
        return str(self.op.definition.name.suffixed(SUFFIXES[self.kind]))

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

    def check(self, *, seed: int = 0, raise_on_failure: bool = True) -> Report:
        """Check on the op's samples that its variants and the op agree.

        Raises:
            CheckError: they do not.
        """
        from custom_autograd.verification import check as checking  # verification is not loaded before it is asked for

        return checking.check(self.op, checks=["parity"], seed=seed, raise_on_failure=raise_on_failure)

    @property
    def _origin(self) -> Origin:
        """Return what errors about the variant have in common."""
        return Origin(f"{self.op.name}.{self.kind}", self.op.declaration.location)

    def _call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # Any: as the schema declares, here and below
        """Return its own kernels by way of the dispatcher, or directly; else the op and a copy."""
        if any(isinstance(value, Proxy) for value in (*args, *kwargs.values())):
            return self.overload(*args, **kwargs)  # torch.fx records it, and keeps what it writes
        record = self.op.variants.get(self.kind)
        if record is None or not record.road.has_own_kernels:
            return self._compose(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            assert record.dispatched is not None
            record.dispatched.generate()
            return record.dispatched.in_graphs(self, *args, **kwargs)
        if transforms.is_transforming():
            return self._compose(*args, **kwargs)
        if self._direct is None:
            self._direct = make_public_call(record)
        return self._direct(self, *args, **kwargs)

    @abstractmethod
    def _compose(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the op, and copy its results to where they belong."""

    def _refuse_expanded(self, name: str, tensor: Tensor) -> None:
        """Raise if one write to a tensor would change several of its elements."""
        if _is_expanded(tensor):
            raise self._origin.error(
                KernelError,
                f"several elements of '{name}' have one place in memory",
                expected="a tensor that is not expanded",
                found=f"strides {tuple(tensor.stride())} for {shape_of(tensor)}",
                do=f"clone() '{name}' before the call",
            )

    def _refuse_cast(self, name: str, target: Tensor, result: Tensor) -> None:
        """Raise for another device, and for a dtype that cannot be cast, by PyTorch's rule."""
        if result.device != target.device:
            raise self._origin.error(
                KernelError,
                f"'{name}' is on another device than the result",
                expected=str(result.device),
                found=str(target.device),
                do=f"move '{name}', or the other arguments, to one device",
            )
        if _kind(result.dtype) > _kind(target.dtype):
            raise self._origin.error(
                KernelError,
                f"a result of {result.dtype} cannot be cast to the dtype of '{name}'",
                expected=f"{result.dtype}, or a dtype that it can be cast to without losing its kind",
                found=str(target.dtype),
                do=f"give '{name}' that dtype",
            )

    # ------------------------------------------------------------------------------------------ the dispatcher's op

    @property
    def _record(self) -> OpRecord:
        """Return what was declared and registered for it; declared now, if it was not."""
        found = self._find_record()
        if found is None:
            with registry.one_declaration_at_a_time:
                found = self.op.variants[self.kind] = self._find_record() or self._declare()
        return found

    def _find_record(self) -> OpRecord | None:
        found = self.op.variants.get(self.kind)
        return None if found is None or found.definition.library is None else found  # it was taken back

    def _declare(self) -> OpRecord:
        op, name = self.op.declaration, self.op.definition.name.suffixed(SUFFIXES[self.kind])
        if adapter_of(op).has_containers:
            raise op.error(
                DeclarationError,
                f"the {self.label} variant of an op with containers has neither an overload nor kernels",
                found=op.schema.text,
                do="call it: it is the op, then a copy",
            )
        taken = registry.find_record(str(name))
        tags = tuple(tag for tag in HANDED_BACK if tag.name == self.kind)
        compose, schema = functools.partial(self._compose), variant_of(op.schema, self.kind)
        declaration = Declaration(
            name, schema, compose, op.location, None, tags, is_reference=False, modules=op.modules, composition=compose
        )
        is_old = taken is not None and taken.declaration.composition is not None  # of an op that was replaced
        return declare.define(declaration, FakeRule(op.location, compose), replace=is_old)

    # -------------------------------------------------------------------------------------------- kernels of its own

    @or_decorator_for
    def register_kernel(self, device_types: str | tuple[str, ...] | None, fn: F, /, *, replace: bool = False) -> F:
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
        self.op.declaration.check_bools(replace=replace)
        with declare.all_or_nothing():
            record = self._record
            is_derived = device_types is None and record.kernels[None].given is record.declaration.function
            check_call(record.declaration, f"kernel of the {self.label} variant", fn)
            guarded = self._guarded(fn)
            kernel_rules.register(record, device_types, guarded, KernelOptions(), replace=is_derived or replace)
        record.road.has_own_kernels = True
        return fn

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a kernel that leaves calls whose tensors do not fit the results to the op and a copy."""
        run_fake, names = KnownFakes(self._run_fake), out_names(self.op.declaration.schema)

        @functools.wraps(function)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            targets, others, keywords = args[:1], args[1:], kwargs
            if self.kind == OUT:
                targets, others = tuple(kwargs[name] for name in names), args
                keywords = {name: value for name, value in kwargs.items() if name not in names}
            results = self._find_results(run_fake, args, keywords)
            if self._fits(targets, [*others, *keywords.values()], results):
                return function(*args, **kwargs)
            return self._compose(*args, **kwargs)

        return kernel

    def _fits(self, targets: Sequence[Tensor], others: Sequence[Any], results: Metadata | None) -> bool:
        """Return True if targets have the metadata and the device of the results, and no element twice in memory."""
        if results is None:
            return False
        like, seen = first_tensor(others), tensors_in(others)
        for target, (shape, dtype) in zip(targets, results, strict=True):
            if target.shape != shape or target.dtype != dtype or _is_expanded(target):
                return False
            if like is not None and target.device != like.device:
                return False
            if any(do_overlap(target, other) for other in seen):
                return False
            seen.append(target)
        return True

    def _find_results(
        self, run_fake: KnownFakes[Metadata | None], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Metadata | None:
        """Return the metadata of the op's visible outputs, or None if it depends on data."""
        rule = self.op.registrations.get(FakeRule)
        function = self.op.reference() if rule is None else rule.function
        if function is None:
            raise self.op.declaration.error(
                KernelError,
                "a kernel of a variant runs only where the result fits, and nothing tells the shape of the result",
                expected="a fake or a reference of the op",
                do="register_fake for the op",
            )
        return run_fake(function, tuple(kwargs), _specification([*args, *kwargs.values()]))

    def _run_fake(self, function: Callable[..., Any], keywords: Sequence[str], given: Any) -> Metadata | None:
        try:
            with torch.no_grad():
                values = _without_data(given)
                count = len(values) - len(keywords)
                result = function(*values[:count], **dict(zip(keywords, values[count:], strict=True)))
        except Exception:  # noqa: BLE001 - a fake that needs data may raise any error; the op itself then runs
            return None
        outputs = self.op.declaration.schema.outputs
        results = result if isinstance(result, (tuple, list)) else (result,)
        if len(results) != len(outputs) or not all(isinstance(one, Tensor) for one in results):
            return None
        pairs = zip(outputs, results, strict=True)
        return tuple((one.shape, one.dtype) for output, one in pairs if not output.is_hidden)


def _is_expanded(tensor: Tensor) -> bool:
    """Return True if one write to a tensor would change several of its elements."""
    # Dynamo knows only strided tensors, and refuses to read the layout in the backward of a `torch.autograd.Function`.
    if not torch.compiler.is_dynamo_compiling() and tensor.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _kind(dtype: torch.dtype) -> int:
    """Return bool, integer, real or complex: `torch.can_cast` casts upwards only, and would enter an exported graph."""
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def shape_of(tensor: Tensor) -> str:
    """Return the shape of a tensor, for messages."""
    return f"shape {tuple(tensor.shape)}"


def _specification(value: Any) -> Any:
    """Return an argument without the data of its tensors, as what can be hashed."""
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return list, *map(_specification, value)
    return type(value), value


def _without_data(specification: Any) -> Any:
    """Return the argument, with tensors on the meta device."""
    kind, *rest = specification
    if kind is Tensor:
        shape, stride, dtype = rest
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return [_without_data(item) for item in rest] if kind is list else rest[0]


def _container_in(tree: ArgumentTree, kind: str) -> str:
    """Return which container rules out a variant; empty if none does."""
    if tree.results is not None:
        return "it returns a container"
    return "its first argument is a container" if kind == INPLACE and not tree.is_plain(0) else ""


def _restore(cls: type[Variant], name: str, modules: str | tuple[str, ...]) -> Variant:
    """Return how a variant is unpickled: by the name of its op, after importing the module that declares it."""
    return cls(declare.find_or_import(name, modules))
