"""Runs a registered vmap rule on tensors, one by one: the most common call, without binding or trees of values.

Every other call goes to the general batching kernel (capability.py), which returns the same and raises the same errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.lookup import described_op
from custom_autograd.torch_private import batching
from custom_autograd.values.user_code import noted


def find_quick_rule(record: OpRecord) -> Callable[..., Any] | None:  # Any: takes and returns what the schema says
    """Return what runs the rule that is registered now, for calls by position; it returns None for other calls.

    Returns:
        None if the op has no rule, a line of shapes, more than one output, or arguments of other kinds.
    """
    rule, schema = record.registrations.vmap, record.declaration.schema
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
        level, info = batching.current_vmap()
        pairs = [batching.unwrap(one, level) if isinstance(one, Tensor) else (one, None) for one in args]
        dims = tuple([dim for _, dim in pairs])
        if dims.count(None) == count:
            return None
        with batching.without_batching():
            found = run(info, dims, *[value for value, _ in pairs])
        if not _is_plain(found, info.batch_size):
            from custom_autograd.capabilities.vmap.batched_results import BatchedResultReader  # loaded for the first

            found = BatchedResultReader(record, rule, info.batch_size).read(found)
        result, dim = found
        return result if dim is None else batching.wrap(result, dim, level)

    return quick


def _is_plain(found: Any, size: int) -> bool:  # Any: what a rule returned
    """Return True for a tensor that has the batch where the rule says."""
    if type(found) is not tuple or len(found) != 2:
        return False
    result, dim = found
    return type(result) is Tensor and type(dim) is int and 0 <= dim < result.dim() and result.shape[dim] == size
