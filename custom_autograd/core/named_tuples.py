"""Read NamedTuples that user code returns by the names of their fields, whatever the order of these is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from custom_autograd.core.schema import Schema


def in_order_of(names: Sequence[str], values: Any, *, prefixes: Sequence[str] = ()) -> Any:
    """Return the values of a NamedTuple in the order of names, if its fields are these; anything else as it is.

    Args:
        names: in the order that is wanted.
        values: what user code returned (Any: whatever that is); torch.return_types have fields, too.
        prefixes: what the fields may have before the names, such as `grad_`.
    """
    if not isinstance(values, tuple) or type(values) is tuple:
        return values
    fields = getattr(type(values), "_fields", None) or getattr(type(values), "__match_args__", ())
    for prefix in ("", *prefixes):
        wanted = [prefix + name for name in names]
        if fields and tuple(fields) != tuple(wanted) and set(fields) == set(wanted):
            return tuple([getattr(values, name) for name in wanted])
    return values


def sole_value(schema: Schema, value: Any) -> Any:
    """Return what is in a tuple of one that user code returned for the one output of an op; anything else as it is.

    Args:
        schema: of the op. Its one output may be a list whose tensors are in a tuple: what is around a list is a tuple
            of one by the schema, or a NamedTuple with the name of the output.
        value: what user code returned (Any: whatever that is).
    """
    if not isinstance(value, tuple) or len(value) != 1:
        return value
    (output,) = schema.outputs
    is_named = getattr(type(value), "_fields", None) == (output.name,)
    return value[0] if is_named or schema.is_one_tuple or not output.is_tensor_list else value


def results_in_order(schema: Schema, result: Any) -> Any:
    """Return the results of a kernel or a reference (Any: whatever it returned) in the order of the op's outputs.

    That of an op with one output is the output, out of its tuple; what is not a tuple stays as it is.
    """
    result = in_order_of(schema.output_names, result)
    return sole_value(schema, result) if len(schema.outputs) == 1 else result
