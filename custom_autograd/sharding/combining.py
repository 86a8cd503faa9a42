"""Combining: a rule by which a dimension in brackets is cut across ranks, from `register_sharding`.

Each rank runs the op on its slice; the function combines the outputs of all ranks, with collectives over the group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import advise, quote
from custom_autograd.core.option_types import check_type
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration import rules
from custom_autograd.registration.capability import add
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Function, NamedRule, value_names
from custom_autograd.shapes.rule import described_op

if TYPE_CHECKING:
    from custom_autograd.shapes.notation import Line

F = TypeVar("F", bound=Callable[..., Any])

SPECIAL = {
    "gather": "a function that stacks a tensor of all ranks",
    "group": "the process group of the ranks that have the slices",
    "index": "the position of this rank among them",
    "count": "the number of slices",
    "start": "the position of this rank's slice in the dimension",
    "size": "the size of the whole dimension",
}


@dataclass(frozen=True, slots=True)
class Combining(NamedRule):
    """How slices along one dimension are combined.

    Attributes:
        dim: the name of the dimension in the line.
        arguments: returns the arguments of a rank that differ from its slices, by name; or None.
        taken: the names that `arguments` takes.
    """

    kind = "sharding"
    dim: str
    arguments: Function | None = None
    taken: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the word for it and the dimension."""
        return f"{self.kind} '{self.dim}'"

    @property
    def part(self) -> str:
        """Return the dimension."""
        return self.dim

    @property
    def functions(self) -> tuple[Function, ...]:
        """Return both functions."""
        return (self.function,) if self.arguments is None else (self.function, self.arguments)


def register(record: OpRecord, dim: str, function: F, arguments: Function | None, *, replace: bool) -> F:
    """Register how slices along a dimension are combined."""
    declaration = record.declaration
    described = described_op(record)
    if described is None:
        problem = "register_sharding cuts a dimension of the op's line, and there is none"
        do = "give shapes=, or call register_shapes first"
        raise declaration.origin(location_of(function)).error(RegistrationError, problem, do=do)
    refuse = partial(declaration.origin(location_of(function)).error, RegistrationError)
    check_type(refuse, "dim", dim, (str,), "the name of a dimension", example="'n'")
    if described.rule.shapes is not None:
        check_dimension(record, described.line({}), dim, location_of(function))
    values = value_names(declaration.schema)
    inputs = {name: values[name] for name in declaration.schema.argument_names}
    names = rules.bind_names(declaration, "sharding rule", function, values, SPECIAL)
    taken = () if arguments is None else rules.bind_names(declaration, "sharding arguments", arguments, inputs, SPECIAL)
    add(record, Combining(location_of(function), function, names, dim, arguments, taken), replace=replace)
    return function


def check_dimension(record: OpRecord, line: Line, dim: str, location: str) -> None:
    """Raise if a dimension of a line cannot be cut by a rule."""
    origin = record.declaration.origin(location)
    if dim not in line.along:
        problem = f"'{dim}' is cut without a rule: the line has it without brackets"
        if dim not in line.names():
            problem = f"the line has no dimension '{dim}'"
        raise origin.error(
            RegistrationError, problem, expected=quote(sorted(line.along)), found=str(line), do=advise(dim, line.along)
        )
    mixed = [one for one in line.dims() if dim in one.names and (one.name != dim or one.is_many or one.is_broadcast)]
    if mixed:
        problem = f"'{dim}' cannot be cut: the line also has {mixed[0]}"
        raise origin.error(RegistrationError, problem, expected="one dimension by itself", found=str(line))
