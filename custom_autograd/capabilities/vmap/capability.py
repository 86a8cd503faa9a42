"""vmap: the registered rule, else the reference, else a loop over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.calls.bind import Binder
from custom_autograd.capabilities.vmap.batched_results import BatchedResultReader
from custom_autograd.capabilities.vmap.loop import is_batched, loop_over_batch
from custom_autograd.core.errors import KernelError
from custom_autograd.registration.capability import Capability, registered
from custom_autograd.registration.library import implement
from custom_autograd.registration.one_tuple import content, opened
from custom_autograd.registration.registry import Entry
from custom_autograd.registration.rule_types import Rule
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.dispatch import without_key
from custom_autograd.torch_private.transforms import VmapLevel
from custom_autograd.values.user_code import noted

KEY = "FuncTorchBatched"


class Vmap(Capability):
    """Batching of every op."""

    name = "vmap"

    def attach(self, entry: Entry) -> None:
        """Register one batching kernel, which chooses when it is called."""
        if KEY not in entry.attached:
            implement(entry, KEY, _kernel(entry))

    def describe(self, entry: Entry) -> str:
        """Return which of the three ways is taken."""
        found = registered(entry.registrations.vmap)
        if found is not None:
            return found
        if _find_reference(entry) is not None:
            return "derived from the reference"
        is_view = entry.declaration.schema.is_view
        return "missing: register_reference" if is_view else "derived: a loop over the batch"


def _find_reference(entry: Entry) -> Callable[..., Any] | None:
    if entry.declaration.composition is not None:
        return entry.declaration.composition
    return None if entry.declaration.schema.mutated_arguments else entry.reference()


def _kernel(entry: Entry) -> Callable[..., Any]:
    bind = Binder(entry.declaration.schema)

    overload = opened(entry)

    def batched(*args: Any, **kwargs: Any) -> Any:  # Any: as the schema says
        level = VmapLevel()
        raw = bind.raw(*args, **kwargs)
        values, dims = level.unwrap(raw)
        rule = entry.registrations.vmap
        reference = _find_reference(entry) if rule is None and is_batched(dims) else None
        if reference is not None:
            return _by_reference(entry, reference, bind, bind.arguments(*args, **kwargs))
        with without_key(KEY):
            if not is_batched(dims):
                positional, keywords = bind.call(values)
                return overload(*positional, **keywords)
            if rule is None and entry.declaration.schema.is_view:
                raise _no_view(entry)
            if rule is None:
                results, out_dims = loop_over_batch(entry, bind, level.info, values, dims)
            else:
                results, out_dims = _by_rule(entry, rule, bind, level, bind_converted(bind, values), dims)
        return _handed_back(entry, raw, level.wrap(results, out_dims))

    around: Callable[..., Any] = batched
    for capability in entry.capabilities:
        around = capability.around_batched(entry, around)
    return outside_compilation(around)


def _no_view(entry: Entry) -> KernelError:
    """Return a loop over the batch stacks what it gets: a write to the result would not reach the argument."""
    return KernelError(
        entry.name,
        "vmap met an op that returns a view, and a loop over the batch would return a copy of it",
        expected="a reference, or a vmap rule that returns a view",
        declared=entry.declaration.location,
        do="declare the op with reference=True: PyTorch's own views know how to be batched",
    )


def bind_converted(bind: Binder, values: dict[str, Any]) -> dict[str, Any]:  # Any: the op's arguments
    """Return plain values in the user's form."""
    positional, keywords = bind.call(values)
    return bind.arguments(*positional, **keywords)


def _by_reference(entry: Entry, reference: Callable[..., Any], bind: Binder, arguments: dict[str, Any]) -> Any:
    """PyTorch's own operations in the reference know how to be batched."""
    positional, keywords = bind.user_call(arguments)
    result = reference(*positional, **keywords)
    if entry.declaration.schema.is_one_tuple:
        return content(result)
    return tuple(result) if isinstance(result, tuple) else result


def _by_rule(
    entry: Entry, rule: Rule, bind: Binder, level: VmapLevel, values: dict[str, Any], dims: dict[str, Any]
) -> tuple[Any, Any]:
    """Run the user's rule: (info, in_dims, *args, **kwargs) -> (output, out_dims)."""
    schema = entry.declaration.schema
    positional, keywords = bind.user_call(values)
    in_dims = bind.user_call(dims)[0]
    if any(argument.is_keyword_only and argument.holds_tensors for argument in schema.arguments):
        in_dims += [dims[argument.name] for argument in schema.arguments if argument.is_keyword_only]
    found = noted(entry.name, rule)(level.info, tuple(in_dims), *positional, **keywords)
    return BatchedResultReader(entry, rule, level.info.batch_size).read(found)


def _handed_back(entry: Entry, arguments: dict[str, Any], result: Any) -> Any:
    """Return a mutated argument that is also a result is handed back as the caller's own tensor."""
    outputs = entry.declaration.schema.outputs
    if not outputs:
        return None
    if not any(output.alias_of and not output.is_view for output in outputs):
        return result
    results = list(result) if isinstance(result, (tuple, list)) and len(outputs) > 1 else [result]
    found = [
        arguments[output.alias_of] if output.alias_of and not output.is_view else one
        for output, one in zip(outputs, results, strict=True)
    ]
    return found[0] if len(found) == 1 else tuple(found)
