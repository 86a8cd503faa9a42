"""DescribedOp: an op with a line of shapes: the line of a call, and the sizes of its dimensions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from custom_autograd.core.errors import CustomAutogradError, RegistrationError, ShapeError
from custom_autograd.core.messages import show
from custom_autograd.core.schema import Schema
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration.declaration import Declaration
from custom_autograd.shapes.contract import LineMismatch, check_line, numbers_of
from custom_autograd.shapes.notation import Line
from custom_autograd.shapes.parsing import NotationError, parse_line
from custom_autograd.shapes.placing import Shape, SizeMismatch
from custom_autograd.shapes.rule import Shapes
from custom_autograd.shapes.sizes import Sizes

Values = Mapping[str, Any]
"""The arguments of a call by name, in the form of users (Any: tensors, or whatever else has a shape)."""

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
        self, declaration: Declaration, rule: Shapes, kind: type[CustomAutogradError] = RegistrationError
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
        """Return the line of a call.

        Raises:
            RegistrationError: the function does not return one that can be read and fits the op.
        """
        return self._line(values)[0]

    def shapes(self, values: Values) -> dict[str, tuple[Shape, ...]]:
        """Return the shapes of all inputs: none for None."""
        return {name: shapes_of(values[name]) for name in self._tensors}

    def sizes(self, values: Values) -> Sizes:
        """Return the sizes of a call.

        Raises:
            ShapeError: its tensors do not have the dimensions of the line.
        """
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
            raise origin.error(kind, problem, expected=error.expected, found=text, do=error.do) from None
        found = line, numbers_of(line, self.declaration.schema)
        self._lines[text] = found
        if len(self._lines) > MOST:
            self._lines.popitem(last=False)
        return found


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
