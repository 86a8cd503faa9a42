"""Rules that take fewer arguments than the op: they serve calls that leave the others at their defaults.

`torch.library` calls a rule with what the dispatcher passes on, which leaves out trailing arguments that equal their
defaults. A rule that takes the leading arguments only works there until a call passes another. Here such a rule is
registered as one that takes all arguments, and raises for a value that it would ignore.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote, show
from custom_autograd.core.signatures import signature_of_code
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.rules import check_order
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private.trees import flatten_tree

Function = Callable[..., Any]  # Any: a user's function


@dataclass(frozen=True, slots=True)
class Parameters:
    """The arguments of an op as its rules take them.

    Attributes:
        positional: the names of those that are passed by position.
        keywords: the names of the keyword-only ones.
        defaults: by name, of those that have one (Any: of any type).
        is_variadic: one of them is `*name`.
    """

    positional: Sequence[str]
    keywords: Sequence[str]
    defaults: Mapping[str, Any]
    is_variadic: bool


def parameters_of(schema: Schema) -> Parameters:
    """Return the arguments of a schema."""
    return Parameters(
        [argument.name for argument in schema.arguments if not argument.is_keyword_only],
        [argument.name for argument in schema.arguments if argument.is_keyword_only],
        {argument.name: argument.default for argument in schema.arguments if argument.has_default},
        any(argument.is_variadic for argument in schema.arguments),
    )


def take_all(
    declaration: Declaration, title: str, function: Function, parameters: Parameters, leading: Sequence[str] = ()
) -> Function:
    """Return a rule that takes all arguments of an op, made from one that may leave out some with defaults.

    Returns:
        The rule. It raises KernelError if a call passes another value than the default for what `function` leaves out.
    """
    left_out = _find_left_out(function, parameters, len(leading))
    if not left_out:
        return function
    check_order(declaration, title, function, inspect.signature(function), [*leading, *parameters.positional])
    names = [*parameters.positional, *parameters.keywords]
    taken = sum(name not in left_out for name in parameters.positional)

    @functools.wraps(function)
    def whole(*args: Any, **kwargs: Any) -> Any:  # Any: what the schema says
        before, values = list(args[: len(leading)]), args[len(leading) :]
        given = {**dict(zip(parameters.positional, values, strict=False)), **kwargs}
        for name in left_out:
            if not _is_default(given[name], parameters.defaults[name]):
                raise _ignored(declaration, title, function, name, given[name], parameters)
        if "in_dims" in leading:
            position = leading.index("in_dims")
            dims = zip(names, before[position], strict=False)
            before[position] = tuple(dim for name, dim in dims if name not in left_out)
        return function(*before, *values[:taken], **{n: v for n, v in kwargs.items() if n not in left_out})

    either, only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    rows = [(name, either) for name in (*leading, *parameters.positional)] + [(n, only) for n in parameters.keywords]
    whole.__signature__ = inspect.Signature([inspect.Parameter(*row) for row in rows])  # type: ignore[attr-defined]
    return whole


def _find_left_out(function: Function, parameters: Parameters, leading: int) -> tuple[str, ...]:
    """Return the arguments with defaults that a rule does not take; none if it takes all, or fits no call."""
    if not parameters.defaults or parameters.is_variadic:
        return ()
    signature = signature_of_code(function) if callable(function) else None
    if signature is None:
        return ()
    rows = signature.parameters.values()
    own = [row.name for row in rows if row.kind in (row.POSITIONAL_ONLY, row.POSITIONAL_OR_KEYWORD)][leading:]
    is_open = any(row.kind is row.VAR_POSITIONAL for row in rows)
    taken = list(parameters.positional if is_open else parameters.positional[: len(own)])
    is_open = any(row.kind is row.VAR_KEYWORD for row in rows)
    keywords = [name for name in parameters.keywords if is_open or name in signature.parameters]
    left_out = tuple(n for n in (*parameters.positional, *parameters.keywords) if n not in (*taken, *keywords))
    if any(name not in parameters.defaults or name in own for name in left_out):
        return ()
    try:
        signature.bind(*range(leading), *taken, **dict.fromkeys(keywords))
    except TypeError:
        return ()  # whoever registers it raises: it fits no call
    return left_out


def _is_default(value: Any, default: Any) -> bool:
    if value is default:
        return True
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return len(value) == len(default) and all(map(_is_default, value, default))
    if isinstance(value, float) and isinstance(default, float) and math.isnan(value):
        return math.isnan(default)
    if any(isinstance(leaf, Tensor) for leaf in flatten_tree(value)[0]):
        return False
    return bool(value == default)


def _ignored(
    declaration: Declaration, title: str, function: Function, name: str, value: Any, parameters: Parameters
) -> KernelError:
    found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else show(value)
    names = quote((*parameters.positional, *parameters.keywords))
    return KernelError(
        str(declaration.name),
        f"the {title} does not take '{name}', and the call passes another value than the default",
        expected=f"{show(parameters.defaults[name])}, the default of '{name}'",
        found=found,
        rule=location_of(function),
        declared=declaration.location,
        do=f"give the {title} a parameter for each argument of the op: {names}",
    )
