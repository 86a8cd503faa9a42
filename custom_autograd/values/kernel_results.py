"""What a kernel returned -> what the dispatcher may see, or an error; and lists as flat sequences.

The dispatcher believes a kernel: one value too many is read from beyond the end of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import advise_tensor, quote
from custom_autograd.registration.declaration import Declaration
from custom_autograd.schema.named_tuples import results_in_order
from custom_autograd.schema.schema import LIST_TYPES, Output
from custom_autograd.schema.types import find_row
from custom_autograd.torch_private.functions import are_views_noted, is_view
from custom_autograd.torch_private.storages import owns_memory, storages_of

Share: TypeAlias = Callable[[str, Tensor], Tensor]
"""Takes the name of an output and the input that it is."""


class ResultReader:
    """Checks the results of one op's kernels and fakes against its schema."""

    def __init__(
        self,
        declaration: Declaration,
        describe: Callable[[Any], str],
        *,
        share: Share = lambda _, tensor: tensor.clone(),
    ) -> None:
        """Make the reader (Any: a source, as in `read`)."""
        self.share = share
        self.declaration = declaration
        self.describe = describe
        self.outputs = declaration.schema.outputs
        self.is_view = declaration.schema.is_view
        self.may_return_inputs = declaration.schema.may_return_inputs

    def read(self, result: Any, arguments: Mapping[str, Any], source: Any, *, is_checked: bool = True) -> Any:
        """Check number, types and aliasing; return None, one value, or a tuple of them, as the dispatcher takes it."""
        values = self._values(result, source)
        values = [
            self._one(output, value, arguments, source) for output, value in zip(self.outputs, values, strict=True)
        ]
        if is_checked and self.is_view:
            self._check_views(values, arguments, source)
        elif is_checked:
            self._check_aliasing(values, arguments, source)
        if self.may_return_inputs:
            rows = zip(self.outputs, values, strict=True)
            values = [self.share(one.name, its) if _is_input(one, its, arguments) else its for one, its in rows]
        if not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)

    def _values(self, result: Any, source: Any) -> list[Any]:
        count = len(self.outputs)
        result = results_in_order(self.declaration.schema, result, partial(self._fail, source))
        if count == 1 and not (isinstance(result, tuple) and not self.outputs[0].is_tensor_list):
            return [result]
        if result is None and (count == 0 or all(output.alias_of for output in self.outputs)):
            return [None] * count
        if not isinstance(result, (tuple, list)) or len(result) != count:
            found = str(len(result)) if isinstance(result, (tuple, list)) else type(result).__name__
            names = quote(output.name for output in self.outputs)
            self._fail(
                source,
                "returns the wrong number of outputs",
                expected=f"{count}: {names}",
                found=found,
                do="return one value per output of the schema, in order",
            )
        return list(result)

    def _one(self, output: Output, value: Any, arguments: Mapping[str, Any], source: Any) -> Any:
        if output.alias_of is not None and not output.is_view:
            written = arguments[output.alias_of]
            if value is not None and value is not written:
                self._fail(
                    source,
                    f"returns something other than '{output.alias_of}' as output '{output.name}'",
                    expected=f"the tensor that was given as '{output.alias_of}', or None",
                    do=f"write the result to '{output.alias_of}' (copy_) and return it",
                )
            return written
        if output.is_tensor_list:
            kinds = (Tensor, type(None)) if output.type == "Tensor?[]" else Tensor
            if not isinstance(value, (list, tuple)) or not all(isinstance(item, kinds) for item in value):
                self._fail(
                    source,
                    f"returns no list of tensors as output '{output.name}'",
                    expected="a list of tensors",
                    found=_kind(value),
                    do="return one tensor per element, in a list",
                )
            return list(value)
        if not isinstance(value, _classes_of(output)):
            self._fail(
                source,
                f"returns the wrong type as output '{output.name}'",
                expected=output.type,
                found=_kind(value),
                do=advise_tensor(value) if output.holds_tensors else f"return a value of the type {output.type}",
            )
        return float(value) if type(value) is int and output.type == "float" else value

    def _check_aliasing(self, values: list[Any], arguments: Mapping[str, Any], source: Any) -> None:
        """Check that no output shares memory with inputs or others: by address range, since NumPy shares it too."""
        seen = [(f"input '{name}'", *span) for name, value in arguments.items() for span in spans(value)]
        for output, value in zip(self.outputs, values, strict=True):
            if output.alias_of is not None or _is_input(output, value, arguments):
                continue
            for start, end in spans(value):
                for label, other_start, other_end in seen:
                    if start < other_end and other_start < end:
                        self._fail(
                            source,
                            f"returns an output '{output.name}' that shares memory with {label}",
                            expected="new memory",
                            do=_advise(output, label),
                        )
                seen.append((f"output '{output.name}'", start, end))

    def _check_views(self, values: list[Any], arguments: Mapping[str, Any], source: Any) -> None:
        """Check that a view shares the memory of its input, and that autograd records it: else writes are lost."""
        for output, value in zip(self.outputs, values, strict=True):
            given = arguments.get(output.alias_of or "")
            own, its = spans(value), spans(given)
            if not output.is_view or not own or not its or value is given:
                continue
            is_noted = is_view(value) or value.is_inference() or (not are_views_noted() and _share(value, given))
            if own != its or not is_noted:
                self._fail(
                    source,
                    f"returns no view of '{output.alias_of}' as output '{output.name}'",
                    expected=f"a view that PyTorch's own operations make of '{output.alias_of}'",
                    found="memory of its own" if own != its else "the same memory, which autograd does not know of",
                    do="return a view, or take the '(a)' out of the schema",
                )

    def _fail(self, source: Any, problem: str, **facts: str | None) -> NoReturn:
        raise self.declaration.error(KernelError, f"the {self.describe(source)} {problem}", **facts)


def _share(value: Tensor, given: Any) -> bool:  # Any: an argument of the op
    """Return True if a tensor was made from the storage of another one, and not of its address, as NumPy does."""
    return isinstance(given, Tensor) and storages_of(value) == storages_of(given)


def _classes_of(output: Output) -> tuple[type, ...]:
    """Return the classes of what may be returned as an output that is not a list."""
    row = find_row(output.type)
    return (Tensor, type(None)) if output.type == "Tensor?" else (row.results if row is not None else ()) or (Tensor,)


def _is_input(output: Output, value: Any, arguments: Mapping[str, Any]) -> bool:
    """Return True if a kernel returned the input that the output is declared to be, sometimes."""
    return output.may_be is not None and value is arguments[output.may_be]


def _advise(output: Output, label: str) -> str:
    if not label.startswith("input"):
        return "return a copy of one of them"
    if output.type in LIST_TYPES:
        return "return copies (.clone()); views can be outputs one by one, as in '-> (Tensor(a), Tensor(a))'"
    name = label.removeprefix("input ")
    if output.may_be is not None and repr(output.may_be) == name:
        return f"return {name} itself, which aliases= allows, or a copy (.clone()); a part of it is neither"
    declared = f"aliases={{'{output.name}': {name}}}"
    return f"return a copy (.clone()), or declare {declared} for {name} itself, or 'Tensor(a)' in schema= for a view"


def spans(value: Any) -> list[tuple[int, int]]:
    """Return the address range of each tensor; some (fake, wrapped, sparse) own no memory that could be compared."""
    if isinstance(value, (list, tuple)):
        return [span for item in value for span in spans(item)]
    if not isinstance(value, Tensor) or not owns_memory(type(value)):
        return []
    if value.layout is not torch.strided or value.device.type == "meta":
        return []
    try:
        storage = value.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return []
    return [(start, start + size)] if start and size else []


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


SINGLE = -1
NO_LIST = -2


def flatten(values: Sequence[Any], are_lists: Sequence[bool]) -> tuple[list[Any], list[int]]:  # Any: an op's values
    """Return values with each list replaced by its elements, and its length; `SINGLE` and `NO_LIST` for others."""
    flat: list[Any] = []
    lengths: list[int] = []
    for value, is_list in zip(values, are_lists, strict=True):
        if not is_list:
            flat.append(value)
            lengths.append(SINGLE)
        elif value is None:
            lengths.append(NO_LIST)
        else:
            flat.extend(value)
            lengths.append(len(value))
    return flat, lengths


def flatten_values(values: Sequence[Any]) -> tuple[list[Any], list[int]]:  # Any: as there
    """Return the same for values that are lists now; a tenth of the time."""
    flat: list[Any] = []
    lengths: list[int] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            flat.extend(value)
            lengths.append(len(value))
        else:
            flat.append(value)
            lengths.append(SINGLE)
    return flat, lengths


def restore(flat: Sequence[Any], lengths: Sequence[int]) -> list[Any]:  # Any: as in `flatten`
    """Return the inverse of `flatten`: lists where there were lists."""
    values: list[Any] = []
    position = 0
    for length in lengths:
        if length == SINGLE:
            values.append(flat[position])
            position += 1
        elif length == NO_LIST:
            values.append(None)
        else:
            values.append(list(flat[position : position + length]))
            position += length
    return values


class Layout:
    """The list lengths of one call: those of the arguments, and, once it has run, those of the results."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: list[int]) -> None:
        self.inputs = inputs
        self.outputs: list[int] = []

    def flatten_outputs(self, values: Sequence[Any], are_lists: Sequence[bool]) -> tuple[Any, ...]:  # Any: results
        """Flatten results, and note their lengths."""
        flat, self.outputs = flatten(values, are_lists)
        return tuple(flat)


def are_plain(gradients: Sequence[Any]) -> bool:  # Any: tensors, or None
    """Return True if all gradients of a list have arrived, and none is lazily conjugated or negated."""
    return all(one is not None and not (one.is_neg() or one.is_conj()) for one in gradients)


def is_undefined(gradients: Sequence[Any] | None) -> bool:  # Any: as above
    """Return True if no gradient of a list has arrived."""
    return gradients is None or all(one is None for one in gradients)
