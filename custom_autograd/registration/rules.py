"""Binds a user's function to an op, by the names of its parameters or by position.

A rule gets what it names, and what is saved for it follows from that.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from custom_autograd.core.errors import KernelError, RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote, show, suggest
from custom_autograd.core.signatures import (
    GENERATOR,
    WITHOUT_DELAY,
    find_delay,
    find_misfit,
    find_signature,
    plain_parameters,
    read_signature,
    signature_of_code,
)
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.declaration import Declaration, Function
from custom_autograd.registration.rule_types import META, NEEDS, special_names, value_names
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private.trees import flatten_tree


def check_call(declaration: Declaration, title: str, function: Function) -> None:
    """Check that a function can be called with the op's arguments, in their order."""
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
    function: Function,
    positional: Iterable[str],
    keywords: Iterable[str] = (),
    *,
    may_yield: bool = False,
) -> None:
    """Check that a function accepts these positional arguments and keywords; a builtin raises when called."""
    _check_runs(declaration, title, function, may_yield=may_yield)
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
        raise refusing(declaration, function)(
            f"the {title} does not fit the schema: {find_misfit(signature, positional, keywords) or error}",
            expected=f"({', '.join([*positional, *star, *keywords])})",
            found=str(signature),
            do="give it these parameters",
        ) from error
    check_order(declaration, title, function, signature, positional)


def check_order(
    declaration: Declaration, title: str, function: Function, signature: inspect.Signature, positional: Iterable[str]
) -> None:
    """Refuse a function that is called by position, and that calls an argument what another one is called."""
    expected = list(positional)
    parameters = [p for p in signature.parameters.values() if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    by_position = ["*" * (p.kind is p.VAR_POSITIONAL) + p.name for p in parameters]
    for place, name in enumerate(by_position):
        if name in expected and expected.index(name) != place:
            raise refusing(declaration, function)(
                f"the {title} takes the op's arguments in another order",
                expected=f"({', '.join(expected)})",
                found=f"({', '.join(by_position)})",
                do="put the parameters in the order of the schema",
            )


def refusing(declaration: Declaration, function: object) -> Callable[..., RegistrationError]:
    """Return what makes errors of the registration of a user's function; arguments as for `Origin.error`."""
    location = location_of(function) if callable(function) else None
    return partial(declaration.origin(location).error, RegistrationError)


def _check_runs(declaration: Declaration, title: str, function: object, *, may_yield: bool = False) -> None:
    """Refuse what is not callable, and a function that a call does not run."""
    if not callable(function):
        problem = f"the {title} is not callable"
        raise refusing(declaration, function)(problem, expected="a function", found=repr(function))
    delay = find_delay(function)
    if delay is not None and not (may_yield and delay == GENERATOR):
        problem = f"the {title} returns {delay}, which has not run"
        raise refusing(declaration, function)(problem, expected="a function that returns results", do=WITHOUT_DELAY)


def check_surrogate(declaration: Declaration, function: object, surrogate: object) -> None:
    """Raise if `surrogate=` is anything but None or a text."""
    if surrogate is not None and not (isinstance(surrogate, str) and surrogate.strip()):
        raise refusing(declaration, function)(
            "surrogate= takes the reason why the gradient is not the derivative",
            expected="a text",
            found=show(surrogate),
            do="write surrogate='straight through: the derivative of round is taken to be 1'",
        )


def bind_gradients(declaration: Declaration, title: str, function: Function) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the names that a rule is called with, and those of its parameters with a default of None."""
    _check_runs(declaration, title, function)
    names, optional = plain_parameters(function), frozenset[str]()
    if names is None or not _are_plain(declaration.schema, names):
        special = special_names(declaration.schema, with_grads=True, with_tangents=False)
        bound = _bind(declaration, title, function, value_names(declaration.schema), special)
        names = tuple([one.name for one in bound])
        optional = frozenset([one.name for one in bound if one.default is None])
    check_takes_one(declaration, title, function, names, declaration.schema.results_by_grad, "gradient")
    return names, optional


def check_takes_one(
    declaration: Declaration,
    title: str,
    function: Function,
    names: Collection[str],
    incoming: Collection[str],
    kind: str,
) -> None:
    """Raise if a rule takes nothing that arrives: what it returns could be right only if zero."""
    if incoming and set(incoming).isdisjoint(names):
        raise refusing(declaration, function)(
            f"the {title} takes no incoming {kind}, so what it returns would be the same whatever arrives",
            expected=f"one of {quote(incoming)} among its parameters",
            found=quote(names) or "no parameters",
            do="multiply by it; return None for what is always zero",
        )


def _are_plain(schema: Schema, names: tuple[str, ...]) -> bool:
    """Return True if each name is that of an input, an output or an incoming gradient, and of one of those only."""
    values = {*schema.argument_names, *[output.name for output in schema.fresh_outputs]}
    others = {NEEDS, META}
    return all((name in values) != (name in schema.results_by_grad) and name not in others for name in names)


def bind_names(
    declaration: Declaration, title: str, function: Function, values: Mapping[str, str], special: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the names that a rule is called with."""
    return tuple(parameter.name for parameter in _bind(declaration, title, function, values, special))


def _bind(
    declaration: Declaration, title: str, function: Function, values: Mapping[str, str], special: Mapping[str, str]
) -> list[inspect.Parameter]:
    """Return the parameters that a rule is called with; arguments and errors as in `bind_names`."""
    valid = tuple(dict.fromkeys([*values, *special]))
    _check_runs(declaration, title, function)
    signature, bound = find_signature(function), list[inspect.Parameter]()
    if signature is None:
        do = "wrap it in a function whose parameters are the names it needs"
        raise refusing(declaration, function)(f"the {title} has no signature to bind by", expected=quote(valid), do=do)
    for parameter in signature.parameters.values():
        if parameter.name in valid and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise refusing(declaration, function)(
                    f"the {title} has a positional-only parameter '{parameter.name}'",
                    expected="parameters that can be given by name",
                    do="remove the '/'",
                )
            if parameter.name in values and parameter.name in special:
                raise _ambiguous(declaration, title, function, values[parameter.name], special[parameter.name])
            bound.append(parameter)
        elif parameter.default is parameter.empty:
            raise refusing(declaration, function)(
                f"the {title} has a parameter '{parameter}' that names nothing",
                expected=quote(valid),
                found=repr(str(parameter)),
                do=_advise(declaration, parameter.name, valid, signature.parameters),
            )
    _check_attributes(declaration, title, function, [parameter.name for parameter in bound], values)
    return bound


def _check_attributes(
    declaration: Declaration, title: str, function: Function, names: Iterable[str], values: Iterable[str]
) -> None:
    """Raise if a rule takes attributes by name of values one of which has the name of what every object has."""
    hidden = [name for name in values if name.startswith("__") and name.endswith("__")]
    taking = [name for name in (NEEDS, META) if name in names]
    if hidden and taking:
        problem = f"takes '{taking[0]}', whose attribute '{hidden[0]}' is Python's own"
        raise refusing(declaration, function)(f"the {title} {problem}", do=f"rename '{hidden[0]}' in the op")


def _ambiguous(declaration: Declaration, title: str, function: Function, value: str, other: str) -> RegistrationError:
    kind, _, name = value.partition(" ")
    return refusing(declaration, function)(
        f"the {title} has a parameter {name} that names two things",
        expected="a parameter with one meaning",
        found=f"the {kind} {name}, and {other}",
        do=f"rename the {kind} or, for a gradient, the output (outputs=); register_autograd binds no names",
    )


def _incoming(schema: Schema, valid: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of incoming gradients and tangents, of those that a rule may take."""
    grads = [name for name in valid if name in schema.results_by_grad]
    tangents = [f"tangent_{argument.name}" for argument in schema.differentiable_arguments]
    return {"gradient": grads, "tangent": [name for name in valid if name in tangents]}


def _advise(declaration: Declaration, name: str, valid: tuple[str, ...], given: Collection[str]) -> str:
    results = [grad for grad in declaration.schema.grad_names.values() if grad in valid]
    if name == "grad" and results:
        return f"the op has several differentiable results: name their gradients, {quote(results)}"
    if name == "ctx":
        return "rules bound by name take no ctx; for a (ctx, *grads) backward use register_autograd"
    if name.startswith("grad") and not declaration.schema.results_by_grad:
        return "the op has no result with a gradient: for one, annotate a result as Tensor, and return a tensor"
    near = suggest(name, valid)
    if near and len(name) > len("dx"):  # near to every x, and no slip of the pen
        return near
    for kind, incoming in _incoming(declaration.schema, valid).items():
        if incoming and {*incoming}.isdisjoint(given):
            names = " or ".join(map(repr, incoming))
            return suggest(name, incoming) or f"the incoming {kind} is called {names}; inputs and outputs, as in the op"
    return near or "name an input, an output, or what else is listed"


# Rules that take fewer arguments than the op: they serve calls that leave the others at their defaults.
#
# `torch.library` calls a rule with what the dispatcher passes on, which leaves out trailing arguments that equal their
# defaults. A rule that takes the leading arguments only works there until a call passes another. Here such a rule is
# registered as one that takes all arguments, and raises for a value that it would ignore.


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
    """Return a rule that takes all arguments of an op, made from one that may leave out some with defaults."""
    left_out = _find_left_out(function, parameters, len(leading))
    if not left_out:
        return function
    check_order(declaration, title, function, read_signature(function), [*leading, *parameters.positional])
    names = [*parameters.positional, *parameters.keywords]
    taken = sum(name not in left_out for name in parameters.positional)

    @functools.wraps(function)
    def whole(*args: Any, **kwargs: Any) -> Any:  # Any: what the schema declares
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
    return declaration.error(
        KernelError,
        f"the {title} does not take '{name}', and the call passes another value than the default",
        expected=f"{show(parameters.defaults[name])}, the default of '{name}'",
        found=found,
        rule=location_of(function),
        do=f"give the {title} a parameter for each argument of the op: {names}",
    )
