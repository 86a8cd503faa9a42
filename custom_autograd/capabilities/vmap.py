"""vmap: the registered rule, else the reference, else (also if vmap refuses the reference) a loop over the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import KernelError, raise_if_any
from custom_autograd.core.locations import location_of
from custom_autograd.execution import current_device
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.composition import derivable_reference, hold_back, hold_back_results
from custom_autograd.execution.differentiated_reference import is_about_randomness
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.capability import Capability, add, overriding, registered
from custom_autograd.registration.dispatcher_library import implement, opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Rule
from custom_autograd.registration.rules import check_signature, keywords_of, positional_of, take_all
from custom_autograd.schema.named_tuples import results_in_order
from custom_autograd.shapes.rule import check_sizes, described_op
from custom_autograd.torch_private import transforms
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.dispatch import without_key
from custom_autograd.torch_private.transforms import VmapLevel
from custom_autograd.values.user_code import note_reference, noted
from custom_autograd.values.validation import keep, level_of

if TYPE_CHECKING:
    from custom_autograd.shapes.described import DescribedOp


# Runs a registered vmap rule on tensors, one by one: the most common call, without binding or trees of values.
#
# Every other call goes to the general batching kernel (capability.py), which returns the same and raises the same
# errors.


@dataclass(frozen=True, slots=True)
class VmapRule(Rule):
    """Batching, from `register_vmap`."""

    kind = "vmap"


def find_quick_rule(record: OpRecord) -> Callable[..., Any] | None:  # Any: takes and returns what the schema declares
    """Return what runs the rule that is registered now, for calls by position; None if the op is not that plain."""
    rule, schema = record.registrations.get(VmapRule), record.declaration.schema
    if rule is None or described_op(record) is not None or schema.is_one_tuple or len(schema.outputs) != 1:
        return None
    if schema.outputs[0].type != "Tensor" or schema.outputs[0].alias_of is not None:
        return None
    for argument in schema.arguments:
        if argument.is_keyword_only or argument.is_variadic or argument.is_converted or "[]" in argument.type:
            return None
    run, count = noted(record.name, rule), len(schema.arguments)

    def quick(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != count:
            return None
        level, info = transforms.current_vmap()
        pairs = [transforms.unwrap(one, level) if isinstance(one, Tensor) else (one, None) for one in args]
        dims = tuple([dim for _, dim in pairs])
        if dims.count(None) == count:
            return None
        with transforms.below_vmap():
            found = run(info, dims, *[value for value, _ in pairs])
        if not _is_plain(found, info.batch_size):
            from custom_autograd.capabilities.vmap_loop import BatchedResultReader  # loaded for the first

            found = BatchedResultReader(record, rule, info.batch_size).read(found)
        result, dim = found
        return result if dim is None else transforms.wrap(result, dim, level)

    return quick


def _is_plain(found: Any, size: int) -> bool:  # Any: what a rule returned
    """Return True for a tensor that has the batch where the rule says."""
    if type(found) is not tuple or len(found) != 2:
        return False
    result, dim = found
    return type(result) is Tensor and type(dim) is int and 0 <= dim < result.dim() and result.shape[dim] == size


F = TypeVar("F", bound=Callable[..., Any])

KEY = "FuncTorchBatched"


class VmapCapability(Capability):
    """Batching of every op."""

    name = "vmap"

    def attach(self, record: OpRecord) -> None:
        """Register one batching kernel, which chooses when it is called."""
        implement(record, KEY, make=partial(_kernel, record))

    def describe(self, record: OpRecord) -> str:
        """Return which of the ways are taken."""
        found = registered(record.registrations.get(VmapRule))
        if found is not None:
            return found
        described = _described(record)
        by_line = "" if described is None else f"derived from the line of shapes ({described.rule.location}), else "
        has_reference, has_loop = _find_reference(record) is not None, _has_loop(record)
        if has_reference:
            return f"{by_line}derived from the reference" + ", else a loop over the batch" * has_loop
        return f"{by_line}derived: a loop over the batch" if has_loop else "missing: register_reference"


def _find_reference(record: OpRecord) -> Callable[..., Any] | None:
    if record.declaration.composition is not None:
        return record.declaration.composition
    return None if record.declaration.schema.mutated_arguments else derivable_reference(record)


def _has_loop(record: OpRecord) -> bool:
    """Return True if the op may be called for each sample: for views that gives copies, a composition is no kernel."""
    return record.declaration.composition is None and not record.declaration.schema.is_view


def _kernel(record: OpRecord) -> Callable[..., Any]:
    road, find = record.road, partial(_way, record, Binder(record.declaration.schema))

    def batched(*args: Any, **kwargs: Any) -> Any:  # Any: as the schema declares
        # A batched tensor brings calls here after its vmap, too, and torch crashes if it is asked for that level.
        if not transforms.is_transforming():
            raise _has_escaped(record)
        return (road.at_keys.get(KEY) or keep(road, KEY, find))(*args, **kwargs)

    around: Callable[..., Any] = batched
    for capability in overriding(record.capabilities, Capability.around_batched):
        around = capability.around_batched(record, around)
    return outside_compilation(around)


def _way(record: OpRecord, bind: Binder) -> Callable[..., Any]:
    """Return what runs batched calls by what is registered now."""
    quick, general = find_quick_rule(record), _general(record, bind)
    if quick is None:
        return general

    def batched(*args: Any, **kwargs: Any) -> Any:  # Any: as the schema declares
        found = quick(*args, **kwargs)
        return general(*args, **kwargs) if found is None else found

    return batched


def _general(record: OpRecord, bind: Binder) -> Callable[..., Any]:
    """Return the batching kernel for all calls."""
    schema, rule, overload = record.declaration.schema, record.registrations.get(VmapRule), opened(record)
    described, reference = _described(record), _find_reference(record)
    is_plain = bool(schema.outputs) and not any(one.alias_of and not one.is_view for one in schema.outputs)
    has_sizes = described_op(record) is not None and level_of(record.validation) != "off"

    def batched(*args: Any, **kwargs: Any) -> Any:  # Any: as the schema declares
        level, raw = VmapLevel(), bind.raw(*args, **kwargs)
        values, dims = level.unwrap(raw)
        if not is_batched(dims):
            positional, keywords = bind.call(values)
            with without_key(KEY):
                return overload(*positional, **keywords)
        if has_sizes:
            check_sizes(record, bind.converted(raw))
        if rule is not None:
            with without_key(KEY):
                found = level.wrap(*_by_rule(record, rule, bind, level, bind.converted(values), dims))
            return found if is_plain else _handed_back(record, raw, found)
        result = NotImplemented if described is None else _by_line(record, described, bind, level, values, dims)
        if result is NotImplemented and reference is not None:
            result = _by_reference(record, reference, bind, bind.converted(raw))
        if result is not NotImplemented:
            return result
        if schema.is_view:
            raise _no_view(record)
        from custom_autograd.capabilities.vmap_loop import loop_over_batch  # loaded for ops without a rule

        with without_key(KEY):
            found = level.wrap(*loop_over_batch(record, level.info, values, dims))
        return found if is_plain else _handed_back(record, raw, found)

    return batched


def is_batched(dims: Any) -> bool:  # Any: a pytree of dimensions
    """Return True if anything is batched."""
    if isinstance(dims, Mapping):
        return any(map(is_batched, dims.values()))
    if isinstance(dims, (list, tuple)):
        return any(map(is_batched, dims))
    return dims is not None


def _described(record: OpRecord) -> DescribedOp | None:
    """Return an op whose line may say how it is batched, or None."""
    described = described_op(record)
    if described is None:
        return None
    from custom_autograd.shapes.cuts import can_be_batched  # loaded for ops with a line

    return described if can_be_batched(record.declaration) else None


def _by_line(
    record: OpRecord,
    described: DescribedOp,
    bind: Binder,
    level: VmapLevel,
    values: dict[str, Any],
    dims: dict[str, Any],
) -> Any:  # Any: values and results, as the schema declares
    """Return the result of one call with the batch as one more dimension; NotImplemented if the line has no such."""
    from custom_autograd.shapes.cuts import group_of_batch, with_batch_in_front  # loaded for ops with a line

    line = described.line(bind.converted(level.wrap(values, dims)))
    group = group_of_batch(line, dims)
    if group is None:
        return NotImplemented
    positional, keywords = bind.call(with_batch_in_front(line, group, values, dims, level.info.batch_size))
    with without_key(KEY):
        results = opened(record)(*positional, **keywords)
    return level.wrap(results, (0,) * len(results) if isinstance(results, tuple) else 0)


def _has_escaped(record: OpRecord) -> KernelError:
    """Return the error of a call with a batched tensor that was kept after its vmap."""
    return record.declaration.error(
        KernelError,
        "the op is called with a batched tensor outside of its torch.vmap",
        expected="a tensor that torch.vmap returned",
        do="return the tensor from the function that is batched; what the function stores elsewhere stays batched",
    )


def _no_view(record: OpRecord) -> KernelError:
    """Return the error of an op that returns a view: a loop over the batch would return a copy of it."""
    return record.declaration.error(
        KernelError,
        "vmap met an op that returns a view, and a loop over the batch would return a copy of it",
        expected="a reference, or a vmap rule that returns a view",
        do="declare the op with reference=True: PyTorch's own views know how to be batched",
    )


def _by_reference(record: OpRecord, reference: Callable[..., Any], bind: Binder, arguments: dict[str, Any]) -> Any:
    """Run the reference on the batched arguments; NotImplemented if it raises, and a loop over the batch may serve."""
    positional, keywords = bind.user_call(hold_back(record, arguments))
    try:
        result = reference(*positional, **keywords)
    except Exception as error:
        if _has_loop(record) and not is_about_randomness(error):
            return NotImplemented
        if reference is record.reference():
            note_reference(error, record.name, reference)
        raise_if_any(current_device.explain(record, error, lambda: arguments), error)
        raise
    result = results_in_order(record.declaration.schema, result, partial(_refuse, record))
    return hold_back_results(record, result)


def _refuse(record: OpRecord, problem: str, **facts: str) -> NoReturn:
    raise record.declaration.error(KernelError, f"the reference {problem}", **facts)


def _by_rule(
    record: OpRecord, rule: Rule, bind: Binder, level: VmapLevel, values: dict[str, Any], dims: dict[str, Any]
) -> tuple[Any, Any]:
    """Run the user's rule: (info, in_dims, *args, **kwargs) -> (output, out_dims)."""
    from custom_autograd.capabilities.vmap_loop import BatchedResultReader  # loaded for ops with a rule

    schema = record.declaration.schema
    positional, keywords = bind.user_call(values)
    in_dims = bind.user_call(dims)[0]
    if any(argument.is_keyword_only and argument.holds_tensors for argument in schema.arguments):
        in_dims += [dims[argument.name] for argument in schema.arguments if argument.is_keyword_only]
    with transforms.below_vmap():
        found = noted(record.name, rule)(level.info, tuple(in_dims), *positional, **keywords)
    return BatchedResultReader(record, rule, level.info.batch_size).read(found)


def _handed_back(record: OpRecord, arguments: dict[str, Any], result: Any) -> Any:
    """Return the result of a kernel with the caller's own tensor for each mutated argument that is also a result."""
    outputs = record.declaration.schema.outputs
    if not outputs:
        return None
    results = list(result) if isinstance(result, (tuple, list)) and len(outputs) > 1 else [result]
    found = [
        arguments[output.alias_of] if output.alias_of and not output.is_view else one
        for output, one in zip(outputs, results, strict=True)
    ]
    return found[0] if len(found) == 1 else tuple(found)


def register(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register a batching rule."""
    schema, adapter = record.declaration.schema, adapter_of(record.declaration)
    registered = take_all(record.declaration, "vmap rule", function, adapter.parameters(), ["info", "in_dims"])
    registered = adapter.vmap_rule(registered)
    positional = ["info", "in_dims", *positional_of(schema)]
    check_signature(record.declaration, "vmap rule", registered, positional, keywords_of(schema))
    add(record, VmapRule(location_of(function), registered), replace=replace)
    return function
