"""Calls of an op with DTensors, above autograd: which way they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from custom_autograd.core.errors import KernelError
from custom_autograd.execution.bind import Binder
from custom_autograd.registration.registry import OpRecord
from custom_autograd.sharding.capability import advice
from custom_autograd.sharding.local_calls import LocalCalls
from custom_autograd.sharding.strategies import PlacementChoice, has_unknown_outputs, replicated
from custom_autograd.torch_private import placements
from custom_autograd.torch_private.compiler import is_tracing
from custom_autograd.values.kernel_results import ResultReader


def run(
    record: OpRecord, has_rows: bool, has_strategies: bool, placed: Sequence[Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Return what a call gives (Any: as the schema declares); NotImplemented if torch's dispatcher is to run it."""
    schema = record.declaration.schema
    bind, calls = Binder(schema), LocalCalls(record)
    values = bind.arguments(*args, **kwargs)
    if has_rows:
        chosen = PlacementChoice(record).of(values)
        is_combined = any(row.is_combined for row in chosen)
        is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in placed)
        is_local = is_combined or is_recorded or has_unknown_outputs(record, values)
        return calls.run(chosen, *args, **kwargs) if is_local or not has_strategies else NotImplemented
    assert record.overload is not None
    if placements.has_other_rule(record.overload):
        return NotImplemented
    if all(placement.is_replicate() for tensor in placed for placement in tensor.placements):
        return calls.run([replicated(schema, values)] * placed[0].device_mesh.ndim, *args, **kwargs)
    return _by_reference(record, bind, values)


def _by_reference(record: OpRecord, bind: Binder, values: dict[str, Any]) -> Any:
    reference = record.reference()
    if reference is None and is_tracing():  # a note on torch's error would be lost
        raise KernelError(
            record.name,
            "the op meets a DTensor that is not replicated, and nothing declares how the op is sharded",
            declared=record.declaration.location,
            do=advice(record),
        )
    if reference is None:
        return NotImplemented
    positional, keywords = bind.user_call(values)
    reader = ResultReader(record.declaration, lambda _: "reference")
    return reader.read(reference(*positional, **keywords), values, None, is_checked=False)
