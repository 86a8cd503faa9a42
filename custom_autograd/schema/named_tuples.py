"""Read NamedTuples that user code returns by the names of their fields, whatever the order of these is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from custom_autograd.core.messages import quote
from custom_autograd.schema.schema import Schema

Refuse: TypeAlias = Callable[..., NoReturn]
"""Raises an error about what user code returned, given the problem ("returns ..."), `expected`, `found` and `do`."""


def in_order_of(names: Sequence[str], values: Any, refuse: Refuse, *, prefixes: Sequence[str] = ()) -> Any:
    """Return the values of a NamedTuple in the order of names, if its fields are these; anything else as it is."""
    for prefix in ("", *prefixes):
        wanted = [prefix + name for name in names]
        misplaced = find_misplaced(wanted, values)
        if misplaced is not None:
            refuse(
                f"returns a {type(values).__name__} with '{misplaced}' in another place, and with other fields",
                expected=f"fields {quote(wanted)}, in any order",
                found=quote(_fields_of(values)),
                do="name the fields so, or return a plain tuple",
            )
        values = by_fields(wanted, values)
    return values


def by_fields(names: Sequence[str], values: Any) -> Any:
    """Return the values of a NamedTuple in the order of names, if its fields are these; anything else as it is."""
    fields = _fields_of(values)
    if not fields or fields == tuple(names) or set(fields) != set(names):
        return values
    return tuple([getattr(values, name) for name in names])


def find_misplaced(names: Sequence[str], values: Any) -> str | None:
    """Return a field of a NamedTuple with a name that belongs in another place; None if its fields are the names."""
    fields = _fields_of(values)
    if set(fields) == set(names):
        return None
    return next((one for place, one in enumerate(fields) if one in names and place != names.index(one)), None)


def _fields_of(values: Any) -> tuple[str, ...]:
    """Return the names of the fields of a NamedTuple; none for anything else."""
    if not isinstance(values, tuple) or type(values) is tuple:
        return ()
    cls: Any = type(values)
    fields: Any = getattr(cls, "_fields", None) or getattr(cls, "__match_args__", ())  # Any: a NamedTuple has names
    return tuple(fields)


def sole_value(schema: Schema, value: Any) -> Any:
    """Return what is in a tuple of one that user code returned for the one output of an op; anything else as it is."""
    if not isinstance(value, tuple) or len(value) != 1:
        return value
    (output,) = schema.outputs
    is_named = getattr(type(value), "_fields", None) == (output.name,)
    return value[0] if is_named or schema.is_one_tuple or not output.is_tensor_list else value


def results_in_order(schema: Schema, result: Any, refuse: Refuse) -> Any:
    """Return the results of a kernel or a reference (Any: whatever it returned) in the order of the op's outputs.

    Fields that contradict that order are refused. That of an op with one output is the output, out of its tuple; what
    is not a tuple stays as it is.
    """
    if not isinstance(result, tuple):
        return result
    result = in_order_of(schema.output_names, result, refuse)
    return sole_value(schema, result) if len(schema.outputs) == 1 else result
