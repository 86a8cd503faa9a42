"""An op over a batch, one sample at a time: for lists, several outputs, non-tensor outputs and writes alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.calls.bind import Binder
from custom_autograd.core.errors import KernelError, VmapUnavailable
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration.one_tuple import opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.values.random_state import kept_random_state

ByName = Mapping[str, Any]  # Any: the op's arguments, and the dimension (or list of dimensions) of each


def loop_over_batch(record: OpRecord, bind: Binder, info: Any, values: ByName, dims: ByName) -> tuple[Any, Any]:
    """Call the op on each sample of a batch, and stack the results.

    Args:
        record: the op.
        bind: of its arguments.
        info: `batch_size` and `randomness` of the vmap (Any: torch's VmapInfo).
        values: the arguments, without batch wrappers.
        dims: the dimension each is batched over.

    Returns:
        The results, and for each the dimension it is batched over.

    Raises:
        KernelError: a written argument is not batched while another is, an op that draws random numbers is under
            randomness="error", or a non-tensor output differs between samples.
    """
    _check(record, info, values, dims)
    count = int(info.batch_size)  # of a symbolic batch: the graph holds for as many samples
    is_empty = count == 0
    calls = [_one_call(record, bind, info, values, dims, index) for index in range(max(count, 1))]
    columns = list(zip(*calls, strict=True))
    results = [
        _stack(record, output.name, column, is_empty=is_empty)
        for output, column in zip(record.declaration.schema.outputs, columns, strict=True)
    ]
    out_dims = [_dims_of(result) for result in results]
    if len(results) == 1:
        return results[0], out_dims[0]
    return tuple(results), tuple(out_dims)


def _check(record: OpRecord, info: Any, values: ByName, dims: ByName) -> None:
    schema = record.declaration.schema
    for argument in schema.mutated_arguments:
        for label, dim in _labelled(record, argument.name, values, dims):
            if dim is None:
                raise _written_once_per_sample(record, label, values, dims)
    if info.randomness == "error" and _draws(record, values):
        raise record.declaration.origin().error(
            VmapUnavailable,
            "vmap met an op that draws random numbers",
            expected="randomness='different' or 'same'",
            found="randomness='error'",
            do="pass randomness= to torch.vmap",
        )


def _labelled(record: OpRecord, name: str, values: ByName, dims: ByName) -> list[tuple[str, Any]]:
    """Return how a message spells each tensor of an argument, and the dimension that the tensor is batched over."""
    value = values[name]
    if not isinstance(value, (Tensor, list, tuple)):
        return []
    labels = adapter_of(record.declaration).labels(name, values)
    if isinstance(value, Tensor):
        return [(labels[0], dims[name])]
    rows = zip(labels, value, dims[name] or [None] * len(value), strict=True)
    return [(one, dim) for one, item, dim in rows if isinstance(item, Tensor)]


def _written_once_per_sample(record: OpRecord, label: str, values: ByName, dims: ByName) -> KernelError:
    rows = [row for name in values for row in _labelled(record, name, values, dims)]
    return record.declaration.origin().error(
        KernelError,
        f"vmap would write one tensor once per sample: {label} is not batched",
        found=f"{', '.join(one for one, dim in rows if dim is not None)} batched",
        do=f"batch {label} as well: expand and clone it before the call",
    )


def _one_call(record: OpRecord, bind: Binder, info: Any, values: ByName, dims: ByName, index: int) -> tuple[Any, ...]:
    sample = {name: _select(value, dims[name], index) for name, value in values.items()}
    positional, keywords = bind.call(sample)
    overload = opened(record)
    if info.randomness == "same" and _draws(record, values):
        is_last = index == info.batch_size - 1
        positional, keywords = bind.call(sample if is_last else {n: _copied(value) for n, value in sample.items()})
        with kept_random_state(is_enabled=not is_last):
            result = overload(*positional, **keywords)
    else:
        result = overload(*positional, **keywords)
    if not record.declaration.schema.outputs:
        return ()
    return tuple(result) if len(record.declaration.schema.outputs) > 1 else (result,)


def _draws(record: OpRecord, values: ByName) -> bool:
    """Return True if a call draws random numbers: it says so by a tag, or is given a generator."""
    is_given = any(isinstance(value, torch.Generator) for value in values.values())
    return is_given or torch.Tag.nondeterministic_seeded in record.declaration.tags


def _copied(value: Any) -> Any:
    return value.clone_state() if isinstance(value, torch.Generator) else value


def _select(value: Any, dim: Any, index: int) -> Any:
    """Return one sample of an argument; of an empty batch, a sample of zeros that shows the shapes."""
    if isinstance(dim, (list, tuple)):
        return [_select(item, one, index) for item, one in zip(value, dim, strict=True)]
    if dim is None:
        return value
    if value.shape[dim] == 0:
        shape = [size for position, size in enumerate(value.shape) if position != dim % value.dim()]
        return value.new_zeros(shape)
    return value.select(dim, index)


def _stack(record: OpRecord, name: str, column: Sequence[Any], *, is_empty: bool) -> Any:
    first = column[0]
    if isinstance(first, Tensor):
        stacked = torch.stack(list(column))
        return stacked[:0] if is_empty else stacked
    if isinstance(first, (list, tuple)):
        return [_stack(record, name, items, is_empty=is_empty) for items in zip(*column, strict=True)]
    if any(value != first for value in column):
        raise record.declaration.origin().error(
            KernelError,
            f"the output '{name}' is not a tensor and differs between the samples of a vmap",
            found=", ".join(map(str, column[:4])),
            do="register_vmap a rule that says what it means",
        )
    return first


def _dims_of(result: Any) -> Any:
    if isinstance(result, list):
        return [_dims_of(item) for item in result]
    return 0 if isinstance(result, Tensor) else None
