"""Fake kernels: what an op returns, without data. For `torch.compile`, export and FakeTensorMode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import FakeUnavailable, KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import first_line
from custom_autograd.execution import refusals
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.call import make_ready
from custom_autograd.kernels.launches import is_interpreted, recorded
from custom_autograd.registration.capability import Capability, add, overriding, registered
from custom_autograd.registration.dispatcher_library import enclosed
from custom_autograd.registration.kernel import Kernel
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import FakeRule
from custom_autograd.registration.rules import take_all
from custom_autograd.schema.schema import Output, Schema
from custom_autograd.shapes.rule import check_sizes, described_op
from custom_autograd.torch_private import fakes
from custom_autograd.torch_private.definitions import is_of_profile, name_source_of_fake, register_fake
from custom_autograd.values.kernel_results import ResultReader
from custom_autograd.values.tensors import tensors_in
from custom_autograd.values.user_code import note_rule

if TYPE_CHECKING:
    from custom_autograd.shapes.described import DescribedOp

F = TypeVar("F", bound=Callable[..., Any])

NO_FAKE = "no fake is registered"
"""Ends the refusal of an op that has none; Dynamo keeps the text of it, and not the class."""


class FakeCapability(Capability):
    """The registered fake, else the reference, else (for ops without new outputs) nothing to do."""

    name = "fake"

    def attach(self, record: OpRecord) -> None:
        """Register a fake, once, that looks up which rule to run when it is called."""
        if self.name in record.definition.attached:
            return
        bind = Binder(record.declaration.schema)
        reader = ResultReader(record.declaration, str)
        refuse_none = refusals.refuse_none(record.declaration)
        required = [argument.name for argument in record.declaration.schema.arguments if argument.type == "Tensor"]
        ints = _ints_of(record.declaration.schema)

        def fake(*args: Any, **kwargs: Any) -> Any:  # Any: fake tensors and other values, as the schema declares
            record.road.is_traced = True
            if record.road.uncalled:
                make_ready(record)
            arguments = bind.arguments(*args, **kwargs)
            for name in required:
                if arguments[name] is None:
                    refuse_none(name)
            for capability in overriding(record.capabilities, Capability.before_trace):
                capability.before_trace(record, arguments)
            check_sizes(record, arguments)
            rule = _find_rule(record, arguments)
            if rule is None:
                _check_has_no_data(record, "no fake is needed", None, arguments)
                return reader.read(None, arguments, "fake")
            result = _run(record, rule, bind, arguments)
            # Fakes have no memory that could be shared.
            found = reader.read(result, arguments, f"fake, {rule.location},", is_checked=False)
            _check_numbers(record, rule, found, ints)
            _check_has_no_data(record, f"{rule.location}, fake", found, arguments)
            return found

        assert record.definition.library is not None  # the op is defined before anything is attached to it
        rule = record.registrations.get(FakeRule)
        location = record.declaration.location if rule is None else rule.location
        name, whole = str(record.definition.name), enclosed(record.declaration.schema, fake)
        register_fake(record.definition.library, name, whole, location)
        if record.definition.output is not None:
            register_fake(record.definition.library, record.definition.output.name(), fake, location)
        record.definition.attached.add(self.name)

    def describe(self, record: OpRecord) -> str:
        """Return where shapes come from."""
        found = registered(record.registrations.get(FakeRule))
        if found is not None:
            return found
        if record.reference() is not None:
            return "derived from the reference"
        described = _described(record)
        if described is not None and not described.is_always_open:
            return f"derived from the line of shapes ({described.rule.location})"
        if _returns_nothing_new(record):
            return "derived: the op returns nothing new"
        inlined = _find_inlined(record)
        return "missing: register_fake" if inlined is None else f"derived from the {inlined.label} ({inlined.location})"


def _run(record: OpRecord, rule: FakeRule, bind: Binder, arguments: dict[str, Any]) -> Any:  # Any: as above
    """Return what a fake returns; raise if it reads a value, at once or by a number that no output has as a size."""
    positional, keywords = bind.user_call(arguments)
    tensors = tensors_in(list(arguments.values()))
    before = fakes.pending_symbols(tensors)
    try:
        with fakes.without_known_numbers(tensors):
            result = rule.function(*positional, **keywords)
    except Exception as error:
        from custom_autograd.torch_private.symbols import needs_data  # loads sympy

        note_rule(error, record.name, rule)
        has_read = _is_derived(record) and bool(fakes.pending_symbols(tensors) - before)  # a symbol is not an index
        if has_read or needs_data(error):
            raise _reads_data(record, rule, first_line(error)) from error
        raise
    pending = fakes.pending_symbols(tensors) - before
    if pending:
        from custom_autograd.torch_private.symbols import symbols_in  # loads sympy

        if pending - symbols_in(result):
            raise _reads_data(record, rule, "item() or the like, whose number is not the size of an output")
    return result


def _ints_of(schema: Schema) -> list[tuple[int, Output]]:
    """Return the outputs that are spelled int, by position: `Output.type` is int for SymInt, too."""
    spelled = str(schema).rpartition("->")[2].strip(" ()").split(",")
    rows = enumerate(zip(schema.outputs, spelled, strict=False))  # of none, the text is empty
    return [(position, output) for position, (output, text) in rows if text.split()[0] == "int"]


def _check_numbers(record: OpRecord, rule: FakeRule, found: Any, ints: Sequence[tuple[int, Output]]) -> None:
    """Refuse a number that depends on data where the schema says int: torch would try to make a number of it."""
    values = [found] if len(record.declaration.schema.outputs) == 1 else found  # Any: as above
    for output, value in [(output, values[position]) for position, output in ints]:
        if type(value) is int:
            continue
        from custom_autograd.torch_private.symbols import symbols_in  # loads sympy
        from custom_autograd.values.data_reads import FakeReadsValueError

        if symbols_in(value):
            raise record.declaration.origin(rule.where).error(
                FakeReadsValueError,
                f"the fake returns a number that depends on data as output '{output.name}', whose type is int",
                expected="the type SymInt in the schema",
                found=str(record.declaration.schema),
                do="write SymInt there; it is the type that follows from the annotation int",
            )


def _is_derived(record: OpRecord) -> bool:
    return record.registrations.get(FakeRule) is None


def _reads_data(record: OpRecord, rule: FakeRule, found: str) -> FakeUnavailable:
    from custom_autograd.values.data_reads import FakeReadsValueError  # loads sympy

    return record.declaration.origin(rule.where).error(
        FakeReadsValueError,
        f"the fake{' derived from the reference' * _is_derived(record)} reads a value, and fake tensors have none",
        expected="outputs whose metadata follows from that of the inputs",
        found=found,
        do="register_fake a function of shapes and dtypes; torch.library.get_ctx() has new_dynamic_size()",
    )


def _check_has_no_data(record: OpRecord, rule: str, found: Any, arguments: dict[str, Any]) -> None:
    """Refuse uninitialized memory: from a call with tensors on "meta" and others that are not."""
    # Any: results and arguments of any type.
    written = [arguments[argument.name] for argument in record.declaration.schema.mutated_arguments]
    tensors = tensors_in([found, *written])
    if not any(type(tensor) is Tensor and not tensor.is_meta for tensor in tensors):
        return
    devices = {name: tensor.device for name, value in arguments.items() for tensor in tensors_in([value])}
    raise record.declaration.error(
        KernelError,
        "the op meets tensors on 'meta', which have no data, together with tensors that have",
        expected="all tensors on one device",
        found=", ".join(f"'{name}' on {str(device)!r}" for name, device in devices.items()),
        rule=rule,
        do="move them to one device; a fake makes its outputs on the device of an input",
    )


def _described(record: OpRecord) -> DescribedOp | None:
    """Return an op whose line can say all that it returns, or None."""
    described = described_op(record)
    if described is None:
        return None
    from custom_autograd.shapes.described import can_have_fake  # loaded for ops with a line

    return described if can_have_fake(record.declaration.schema) else None


def _find_rule(record: OpRecord, arguments: dict[str, Any]) -> FakeRule | None:
    """Return what computes the result of a call (Any: its arguments); None for an op that returns nothing new."""
    rule = record.registrations.get(FakeRule)
    if rule is not None:
        return rule
    reference = record.reference()
    if reference is not None:
        return FakeRule(record.reference_location, reference)
    described = _described(record)
    if described is not None:
        from custom_autograd.shapes.described import empty_outputs  # loaded for ops with a line

        is_open = described.line(arguments).unknown_output() is not None
        if not is_open and tensors_in(list(arguments.values())):
            return FakeRule(described.rule.location, lambda *_, **__: empty_outputs(described, arguments))
    if _returns_nothing_new(record):
        return None
    inlined = _find_inlined(record)
    if inlined is not None:
        return FakeRule(inlined.location, recorded()(inlined.function))
    raise record.declaration.error(
        FakeUnavailable,
        f"the op meets fake tensors, and {NO_FAKE}",
        do="register_fake a function that returns empty tensors of the right shape, dtype and device; "
        "torch.compile, export and meta tensors need it",
    )


def _find_inlined(record: OpRecord) -> Kernel | None:
    """Return the kernel that compiled graphs hold on every device, so that it can be traced; or None."""
    kernel = None if is_interpreted() else record.kernels.get(None)
    return kernel if kernel is not None and kernel.is_inlined and kernel.when is None else None


def _returns_nothing_new(record: OpRecord) -> bool:
    return not record.declaration.schema.fresh_outputs


def register(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register what the op returns, without data."""
    kind, adapter = FakeRule.kind, adapter_of(record.declaration)
    flat = adapter.accepting(kind, take_all(record.declaration, kind, function, adapter.parameters()))
    fake, old = FakeRule(location_of(flat), flat), record.registrations.get(FakeRule)
    record.declaration.check_bools(replace=replace)
    # torch.export replaces a fake by its own for a while, and puts it back.
    is_for_a_while = old is not None and (is_of_profile(old.function) or is_of_profile(flat))
    add(record, fake, replace=is_for_a_while or replace)
    name_source_of_fake(str(record.definition.name), fake.location)
    return function
