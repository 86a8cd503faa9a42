"""Checks that a user's function can be called like its op: by position, in the order of the schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from custom_autograd.core.errors import Origin, RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.schema import Schema
from custom_autograd.core.signatures import find_misfit, plain_parameters, signature_of_code
from custom_autograd.registration.declaration import Declaration


def check_call(declaration: Declaration, title: str, function: Callable[..., Any]) -> None:
    """Check that a function can be called with the op's arguments, in their order.

    Raises:
        RegistrationError: it cannot, or its parameters are the op's in another order.
    """
    schema = declaration.schema
    check_signature(declaration, title, function, positional_of(schema), keywords_of(schema))


def positional_of(schema: Schema) -> list[str]:
    """Return what is passed by position to whatever is called like the op: `*name` for all further arguments."""
    return ["*" * argument.is_variadic + argument.name for argument in schema.arguments if not argument.is_keyword_only]


def keywords_of(schema: Schema) -> list[str]:
    """Return what is passed by keyword to whatever is called like the op."""
    return [argument.name for argument in schema.arguments if argument.is_keyword_only]


def check_signature(
    declaration: Declaration,
    title: str,
    function: Callable[..., Any],
    positional: Iterable[str],
    keywords: Iterable[str] = (),
) -> None:
    """Check that a function accepts these positional arguments and keywords; a builtin shows its mistakes when called.

    Raises:
        RegistrationError: it is not a function, it does not, or its parameters are those in another order.
    """
    if not callable(function):
        raise origin_of(declaration, function).error(
            RegistrationError, f"the {title} is not callable", expected="a function", found=repr(function)
        )
    positional, keywords = list(positional), list(keywords)
    if not keywords and plain_parameters(function) == tuple(positional):
        return
    signature = signature_of_code(function)
    if signature is None:
        return
    is_variadic = any(name.startswith("*") for name in positional)
    try:
        for count in (0, len(signature.parameters) + 1) if is_variadic else (0,):  # of the arguments behind a star
            given = [name for name in positional for _ in range(count if name.startswith("*") else 1)]
            signature.bind(*given, **dict.fromkeys(keywords))
    except TypeError as error:
        star = ["*"] if keywords and not is_variadic else []
        raise origin_of(declaration, function).error(
            RegistrationError,
            f"the {title} does not fit the schema: {find_misfit(signature, positional, keywords) or error}",
            expected=f"({', '.join([*positional, *star, *keywords])})",
            found=str(signature),
            do="give it these parameters",
        ) from error
    check_order(declaration, title, function, signature, positional)


def check_order(
    declaration: Declaration,
    title: str,
    function: Callable[..., Any],
    signature: inspect.Signature,
    positional: Iterable[str],
) -> None:
    """Refuse a function that is called by position, and that calls an argument what another one is called.

    Raises:
        RegistrationError: a parameter stands in another place than the argument of its name.
    """
    expected = list(positional)
    parameters = [p for p in signature.parameters.values() if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    by_position = ["*" * (p.kind is p.VAR_POSITIONAL) + p.name for p in parameters]
    for place, name in enumerate(by_position):
        if name in expected and expected.index(name) != place:
            raise origin_of(declaration, function).error(
                RegistrationError,
                f"the {title} takes the op's arguments in another order",
                expected=f"({', '.join(expected)})",
                found=f"({', '.join(by_position)})",
                do="put the parameters in the order of the schema",
            )


def origin_of(declaration: Declaration, function: object) -> Origin:
    """Return what errors about a user's function have in common."""
    return declaration.origin(location_of(function) if callable(function) else None)
