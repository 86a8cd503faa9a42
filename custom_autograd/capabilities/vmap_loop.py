"""An op over a batch, one sample at a time; and what a vmap rule returned, read."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import KernelError, VmapUnavailable
from custom_autograd.core.messages import quote, show
from custom_autograd.execution.bind import Binder
from custom_autograd.registration.dispatcher_library import content, opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Rule
from custom_autograd.schema.named_tuples import in_order_of, sole_value
from custom_autograd.schema.schema import Output
from custom_autograd.torch_private.transforms import is_recorded_anywhere
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.values.tensors import copies, overwrite, refuse_overlap, tensors_in

ByName = Mapping[str, Any]  # Any: the op's arguments, and the dimension (or list of dimensions) of each


def loop_over_batch(record: OpRecord, info: Any, values: ByName, dims: ByName) -> tuple[Any, Any]:
    """Call the op on each sample of a batch; return the stacked results, and the dimension each is batched over."""
    outputs, draws = record.declaration.schema.outputs, _draws(record, values)
    _check(record, info, values, dims, draws=draws)
    count = int(info.batch_size)  # of a symbolic batch: the graph holds for as many samples
    is_same, last = draws and info.randomness == "same", max(count, 1) - 1
    written = _written_and_recorded(record, values)
    if written:  # each call gets copies of these, in which the op would not see it
        refuse_overlap(record.declaration, values)
    calls = [
        _call(record, values, dims, index, written, keeps_state=is_same and index < last) for index in range(last + 1)
    ]
    columns = zip(*calls, strict=True) if len(outputs) > 1 else [calls] * len(outputs)
    results = [
        _stack(record, output.name, column, is_empty=count == 0)
        for output, column in zip(outputs, columns, strict=True)
    ]
    out_dims = [_dims_of(result) for result in results]
    if len(results) == 1:
        return results[0], out_dims[0]
    return tuple(results), tuple(out_dims)


def _written_and_recorded(record: OpRecord, values: ByName) -> list[str]:
    """Return the arguments that a call writes to while autograd records it, at any level; none where it does not."""
    written = [argument.name for argument in record.declaration.schema.mutated_arguments]
    return written if written and any(map(is_recorded_anywhere, tensors_in([*values.values()]))) else []


def _call(
    record: OpRecord, values: ByName, dims: ByName, index: int, written: Sequence[str], *, keeps_state: bool
) -> Any:
    """Call the op on one sample, which may leave the states of random numbers as they are."""
    chosen = {name: _select(value, dims[name], index) for name, value in values.items()}
    if keeps_state:
        generators = {name: one for name, one in chosen.items() if isinstance(one, torch.Generator)}
        chosen |= {name: one.clone_state() for name, one in generators.items()}
    # NOTE: what a node saves of a sample would be out of date as soon as the next sample of the batch is written.
    given = [chosen[name] for name in written]
    own = copies(given)
    positional, keywords = Binder(record.declaration.schema).call({**chosen, **dict(zip(written, own, strict=True))})
    with kept_random_state(is_enabled=keeps_state):
        result = opened(record)(*positional, **keywords)
    overwrite(given, own)
    return result


def _check(record: OpRecord, info: Any, values: ByName, dims: ByName, *, draws: bool) -> None:
    schema = record.declaration.schema
    for argument in schema.mutated_arguments:
        for label, dim in _labelled(record, argument.name, values, dims):
            if dim is None:
                raise _written_once_per_sample(record, label, values, dims)
    if draws and info.randomness == "error":
        raise record.declaration.error(
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
    return record.declaration.error(
        KernelError,
        f"vmap would write one tensor once per sample: {label} is not batched",
        found=f"{', '.join(one for one, dim in rows if dim is not None)} batched",
        do=f"batch {label} as well: expand and clone it before the call",
    )


def _draws(record: OpRecord, values: ByName) -> bool:
    """Return True if a call draws random numbers: it says so by a tag, or is given a generator."""
    if torch.Tag.nondeterministic_seeded in record.declaration.tags:
        return True
    return any(isinstance(value, torch.Generator) for value in values.values())


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
    if isinstance(first, Tensor) and all(isinstance(value, Tensor) for value in column):
        _require_one(record, f"the output '{name}' has another shape for each sample of a vmap", _shapes(column))
        stacked = torch.stack(list(column))
        return stacked[:0] if is_empty else stacked
    if isinstance(first, (list, tuple)):
        lengths = [f"a list of {len(items)}" for items in column]
        _require_one(record, f"the output '{name}' has another length for each sample of a vmap", lengths)
        return [_stack(record, name, items, is_empty=is_empty) for items in zip(*column, strict=True)]
    if any(value is None or isinstance(value, Tensor) for value in column):
        kinds = ["None" if value is None else "a tensor" for value in column]
        _require_one(record, f"the output '{name}' is None for some samples of a vmap", kinds)
    elif any(value != first for value in column):
        problem = f"the output '{name}' is not a tensor and differs between the samples of a vmap"
        _require_one(record, problem, list(map(show, column)))
    return first


def _shapes(tensors: Sequence[Tensor]) -> list[str]:
    """Return the shapes as text; none of a size that is not a number yet."""
    if any(tensor.is_nested or any(type(size) is not int for size in tensor.shape) for tensor in tensors):
        return []
    return [str(tuple(tensor.shape)) for tensor in tensors]


def _require_one(record: OpRecord, problem: str, found: Sequence[str]) -> None:
    """Raise an error if the samples differ in what was found: such results cannot be stacked."""
    if len(set(found)) > 1:
        raise record.declaration.error(
            VmapUnavailable,
            problem,
            found=", ".join(found[:4]) + (", ..." if len(found) > 4 else ""),
            do="call the op in a loop over the samples, or register_vmap a rule that says what it means",
        )


def _dims_of(result: Any) -> Any:
    if isinstance(result, list):
        return [_dims_of(item) for item in result]
    return 0 if isinstance(result, Tensor) else None


RETURN = "return the output, and for each output the dimension that is batched, or None"


class BatchedResultReader:
    """Reads what one vmap rule returns in one call.

    PyTorch trusts the structure of it: it reads past the end of a tuple that is too short.
    """

    def __init__(self, record: OpRecord, rule: Rule, batch_size: int) -> None:
        self.record = record
        self.batch_size = batch_size
        self.schema = record.declaration.schema
        self._error = partial(record.declaration.origin(rule.location).error, KernelError)

    def read(self, found: Any) -> tuple[Any, Any]:  # Any: whatever the user's rule returned
        """Return the output and its out_dims, in one structure."""
        if not isinstance(found, tuple) or len(found) != 2:
            raise self._error(
                "the vmap rule returns no pair",
                expected="(output, out_dims)",
                found=type(found).__name__ if not isinstance(found, tuple) else f"a tuple of {len(found)}",
                do=RETURN,
            )
        result, out_dims = found
        outputs = self.schema.outputs
        if not outputs:
            return (), ()
        if len(outputs) == 1:
            return self._one(outputs[0], self._sole(result), self._sole(out_dims))
        rows = zip(outputs, self._values(result), self._dims(out_dims), strict=True)
        values, dims = zip(*[self._one(*row) for row in rows], strict=True)
        return values, dims

    def _sole(self, value: Any) -> Any:
        """Return what is in the tuple or the NamedTuple that the op returns, too."""
        if self.schema.is_one_tuple:
            return content(value)
        return value if type(value) is tuple else sole_value(self.schema, value)

    def _values(self, result: Any) -> Sequence[Any]:
        outputs = self.schema.outputs
        result = in_order_of(self.schema.output_names, result, self._refuse)
        if isinstance(result, (list, tuple)) and len(result) == len(outputs):
            return result
        raise self._error(
            "the vmap rule returns the wrong number of outputs",
            expected=f"{len(outputs)} outputs: {quote(self.schema.output_names)}",
            found=_kind(result),
            do=self._advise_count(len(result) if isinstance(result, (list, tuple)) else 1),
        )

    def _refuse(self, problem: str, **facts: str) -> NoReturn:
        raise self._error(f"the vmap rule {problem}", **facts)

    def _advise_count(self, count: int) -> str:
        """Return what to do about a number of outputs: a backward below the vmap may have saved the hidden ones."""
        outputs = self.schema.outputs
        hidden = [output.name for output in outputs if output.is_hidden]
        if not hidden or count != len(outputs) - len(hidden):
            return "return one value per output, in the order of the schema"
        kind = "output" if len(hidden) == 1 else "outputs"
        call = f"{self.record.declaration.name.name}.overload(...), ({', '.join('0' for _ in outputs)})"
        return f"return the hidden {kind} {quote(hidden)} as well, as the op's overload does: return {call}"

    def _dims(self, out_dims: Any) -> Sequence[Any]:
        outputs = self.schema.outputs
        out_dims = in_order_of(self.schema.output_names, out_dims, self._refuse)
        if not isinstance(out_dims, (list, tuple)):
            return [out_dims] * len(outputs)  # one number for all: torch.vmap takes it so, too
        if len(out_dims) != len(outputs):
            raise self._error(
                "the vmap rule returns the wrong number of out_dims",
                expected=f"{len(outputs)}, one per output: {quote(self.schema.output_names)}",
                found=_kind(out_dims),
                do="return one dimension (or None) per output, in the order of the schema, or one for all",
            )
        return out_dims

    def _one(self, output: Output, value: Any, dim: Any) -> tuple[Any, Any]:
        if output.type in ("Tensor", "Tensor?"):
            return self._tensor(output, output.name, value, dim)
        if not output.holds_tensors:
            return value, None
        if value is None and output.type.endswith("?"):
            return None, None
        if not isinstance(value, (list, tuple)):
            problem = f"the output '{output.name}' of the vmap rule is not a list"
            raise self._error(problem, expected="a list of tensors", found=_kind(value), do=RETURN)
        dims = list(dim) if isinstance(dim, (list, tuple)) else [dim] * len(value)
        if len(dims) != len(value):
            raise self._error(
                f"the out_dims of the list '{output.name}' do not fit it",
                expected=f"{len(value)}, one per tensor of the list, or one for all",
                found=f"{len(dims)}",
                do="return one dimension (or None) per tensor of the list",
            )
        rows = enumerate(zip(value, dims, strict=True))
        read = [self._tensor(output, f"{output.name}[{index}]", *row) for index, row in rows]
        return [one for one, _ in read], [its for _, its in read]

    def _tensor(self, output: Output, label: str, value: Any, dim: Any) -> tuple[Any, Any]:
        if value is None and "?" in output.type:
            return None, None
        if not isinstance(value, Tensor):
            raise self._error(
                f"the output '{label}' of the vmap rule is not a tensor",
                expected="a tensor",
                found=_kind(value),
                do="return (output, out_dims), and a tuple only if the op has several outputs",
            )
        if dim is None:
            return value, None
        return value, self._batch_dim(output, label, value, dim)

    def _batch_dim(self, output: Output, label: str, value: Tensor, dim: Any) -> int:
        try:
            index = operator.index(dim)
        except TypeError:
            raise self._error(
                f"the out_dims of the vmap rule have no dimension for output '{label}'",
                expected="an int, or None if the output is not batched",
                found=_kind(dim),
                do=RETURN,
            ) from None
        if value.is_nested or (-value.dim() <= index < value.dim() and value.shape[index] == self.batch_size):
            return index
        raise self._error(
            f"the vmap rule reports that output '{output.name}' is batched over dimension {index}, and it is not",
            expected=f"{self.batch_size} samples there",
            found=f"shape {tuple(value.shape)}",
            do="return as out_dims the dimension of each output that has the batch, or None",
        )


def _kind(value: Any) -> str:
    """Return what a value is, in words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None:
        return "None"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__}: {show(value)}"
