"""DescribedOp: an op with a line of shapes, the sizes of a call, and fakes that follow from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import CustomAutogradError, FakeUnavailable, RegistrationError, ShapeError
from custom_autograd.core.messages import quote, show
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import FakeRule
from custom_autograd.schema.schema import Output, Schema
from custom_autograd.shapes.line_parser import NotationError, parse_line
from custom_autograd.shapes.notation import Line, Shape, SizeMismatch
from custom_autograd.shapes.requirements import LineMismatch, check_line, numbers_of
from custom_autograd.shapes.rule import WIDE, DType, ShapesRule
from custom_autograd.shapes.unification import Sizes
from custom_autograd.values.tensors import tensors_in

Values = Mapping[str, Any]
"""The arguments of a call by name, in the form of users (Any: tensors, or whatever else has a shape)."""

LONGEST_TEXT = 1_000  # characters of a line in a message
MOST = 256
"""How many lines are kept of a function; the oldest is forgotten."""


class DescribedOp:
    """One op with the shapes that are registered for it.

    Attributes:
        declaration: of the op.
        rule: what is registered.
        lists: the names of the arguments and outputs that are lists of tensors.

    Args:
        declaration: of the op.
        rule: what is registered.
        kind: of the error that is raised if the line cannot be read or does not fit the op.
    """

    def __init__(
        self, declaration: Declaration, rule: ShapesRule, kind: type[CustomAutogradError] = RegistrationError
    ) -> None:
        self.declaration = declaration
        self.rule = rule
        self._adapter = adapter_of(declaration)
        schema = declaration.schema
        self.lists = frozenset(one.name for one in schema.values if one.is_tensor_list)
        self._tensors = [argument.name for argument in declaration.schema.tensor_arguments]
        self._lines: OrderedDict[str, tuple[Line, tuple[str, ...]]] = OrderedDict()
        if rule.shapes is not None:
            self._parsed(rule.shapes, kind)

    @property
    def deciding(self) -> frozenset[str]:
        """Return the arguments besides tensors whose values a line or its sizes may depend on."""
        schema, rule = self.declaration.schema, self.rule
        if rule.shapes is not None:
            return frozenset(numbers_of(self._lines[rule.shapes][0], schema))
        return frozenset(argument.name for argument in schema.arguments if not argument.holds_tensors)

    @property
    def is_always_open(self) -> bool:
        """Return True if the line is the same for all calls, and leaves the shape of an output open."""
        return self.rule.shapes is not None and self._lines[self.rule.shapes][0].unknown_output() is not None

    def line(self, values: Values) -> Line:
        """Return the line of a call."""
        return self._line(values)[0]

    def shapes(self, values: Values) -> dict[str, tuple[Shape, ...]]:
        """Return the shapes of all inputs: none for None."""
        return {name: shapes_of(values[name]) for name in self._tensors}

    def sizes(self, values: Values) -> Sizes:
        """Return the sizes of a call."""
        line, numbers = self._line(values)
        try:
            return Sizes(line, self.shapes(values), {name: values[name] for name in numbers}, self.lists)
        except SizeMismatch as mismatch:
            raise self.declaration.origin(self.where(line)).error(
                ShapeError, mismatch.problem, expected=mismatch.expected, found=mismatch.found
            ) from None

    def where(self, line: Line) -> str:
        """Return the line and its location, as errors print them."""
        return f"{line}  ({self.rule.location})"

    def given(self, values: Values) -> dict[str, Any]:
        """Return everything that a function can name: tensors as their shapes (Any: other values as they are)."""
        return self._adapter.mirrored(with_shapes(self.declaration.schema, values), values)

    def _line(self, values: Values) -> tuple[Line, tuple[str, ...]]:
        rule = self.rule
        if rule.function is None:
            assert rule.shapes is not None  # one of the two is there
            return self._lines[rule.shapes]
        given = self.given(values)
        found = rule.function(**{name: given[name] for name in rule.names})
        known = self._lines.get(found) if isinstance(found, str) else None
        return known or self._parsed(found, RegistrationError)

    def _parsed(self, text: Any, kind: type[CustomAutogradError]) -> tuple[Line, tuple[str, ...]]:
        """Return a line, once it is known to fit the op (Any: whatever the function returned)."""
        origin = self.declaration.origin(self.rule.where)
        if not isinstance(text, str):
            problem = "the shapes of the op are not a line of text"
            raise origin.error(kind, problem, expected="'x: n d -> out: n'", found=show(text))
        try:
            line = parse_line(text)
            check_line(line, self.declaration.schema)
        except NotationError as error:
            problem = f"the line of shapes cannot be read: {error.problem}"
            do = "separate dimensions by spaces and tensors by commas: 'x: *b i, weight: o i -> out: *b o'"
            raise origin.error(kind, problem, found=error.found, do=do) from None
        except LineMismatch as error:
            problem = f"the line of shapes does not fit the op: {error.problem}"
            found = text if len(text) < LONGEST_TEXT else f"{text[:80]}..., {len(text):,} characters"
            raise origin.error(kind, problem, expected=error.expected, found=found, do=error.do) from None
        parsed = line, numbers_of(line, self.declaration.schema)
        self._lines[text] = parsed
        if len(self._lines) > MOST:
            self._lines.popitem(last=False)
        return parsed


def shapes_of(value: Any) -> tuple[Shape, ...]:  # Any: a tensor, a list of tensors, None, or something with a shape
    """Return the shapes of the tensors in an argument."""
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(one.shape for one in value if one is not None)
    return (value.shape,)


def with_shapes(schema: Schema, values: Values) -> dict[str, Any]:
    """Return arguments by name with shapes in place of tensors, and lists in place of tuples."""
    tensors = {argument.name for argument in schema.tensor_arguments}
    return {name: _with_shapes(value, is_tensor=name in tensors) for name, value in values.items()}


def _with_shapes(value: Any, *, is_tensor: bool) -> Any:  # Any: an argument
    if isinstance(value, (list, tuple)):
        return [_with_shapes(item, is_tensor=is_tensor) for item in value]
    return value.shape if is_tensor and value is not None else value


def can_have_fake(schema: Schema) -> bool:
    """Return True if lines can say all that an op returns: single tensors, like one that it is always given."""
    has_tensor = any(argument.type == "Tensor" for argument in schema.arguments)
    return has_tensor and bool(schema.outputs) and all(map(_is_new_tensor, schema.outputs))


def follows_fake(described: DescribedOp, record: OpRecord, values: Mapping[str, Any]) -> bool:  # Any: arguments
    """Return True if the fake of a call follows from its line."""
    has_other = record.registrations.get(FakeRule) is not None or record.reference() is not None
    is_said = can_have_fake(record.declaration.schema) and described.line(values).unknown_output() is None
    return is_said and not has_other


def empty_outputs(described: DescribedOp, values: Mapping[str, Any]) -> Any:  # Any: arguments; a tensor or a tuple
    """Return what a call gives, without data: contiguous, and on the device of the first tensor."""
    sizes, schema = described.sizes(values), described.declaration.schema
    first = tensors_in([values[argument.name] for argument in schema.tensor_arguments])[0]
    shapes = {item.name: sizes.shape_of(item) for item in sizes.line.outputs}
    dtypes = {output.name: find_dtype(described, output.name, values) for output in schema.outputs}
    unknown = next((name for name, dtype in dtypes.items() if dtype is None), None)
    if unknown is not None:
        raise _without_dtype(described, unknown, values, described.where(sizes.line))
    found = [first.new_empty(shapes[name], dtype=dtype) for name, dtype in dtypes.items()]
    return found[0] if len(found) == 1 else tuple(found)


def find_dtype(described: DescribedOp, output: str, values: Mapping[str, Any]) -> torch.dtype | None:  # Any: arguments
    """Return the dtype of an output: as `dtypes` says, else that of the floating and complex inputs; None if unknown.

    Integer inputs (indices, lengths, masks) count only if there are no others.
    """
    dtype: DType | None = described.rule.dtypes.get(output)
    if isinstance(dtype, torch.dtype):
        return dtype
    value = None if dtype is None or dtype == WIDE else values[dtype]
    if value is not None:
        return value if isinstance(value, torch.dtype) else tensors_in([value])[0].dtype
    given = {tensor.dtype for tensor in tensors_in(list(values.values()))}
    found = {one for one in given if one.is_floating_point or one.is_complex} or given
    if dtype == WIDE:
        found = {torch.promote_types(one, torch.float32) for one in found}
    return found.pop() if len(found) == 1 else None


def _without_dtype(described: DescribedOp, output: str, values: Mapping[str, Any], where: str) -> FakeUnavailable:
    arguments = described.declaration.schema.tensor_arguments
    tensors = {argument.name: tensors_in([values[argument.name]]) for argument in arguments}
    dtypes = (f"'{name}' {one.dtype}" for name, given in tensors.items() for one in given[:1])
    return described.declaration.origin(where).error(
        FakeUnavailable,
        f"the line of shapes does not say the dtype of '{output}', and the inputs have several",
        expected="one dtype among the floating and complex inputs, or among integer inputs alone",
        found=", ".join(dtypes),
        do=f"add dtypes={{'{output}': ...}}: a torch.dtype, '{WIDE}', or one of {quote(tensors)}; or register_fake",
    )


def _is_new_tensor(output: Output) -> bool:
    return output.type == "Tensor" and output.alias_of is None and output.may_be is None
