"""How values that the dispatcher has no type for travel through it, functions and classes included."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import torch

from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import show
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import Refusal
from custom_autograd.torch_private.compiler import constant_in_graphs

Conversion: TypeAlias = Callable[[Any], Any]
"""Turns one value of a call into the dispatcher's, or back (Any: of the argument's type), or raises a ValueError."""

GENERATOR_IN_GRAPH = "torch.compile cannot trace a torch.Generator"
"""Begins the refusal of a generator in a graph; Dynamo keeps the text of it, and not the class."""
WRAP = "call torch.fx.wrap(NAME) in the module that calls the op as NAME: torch.fx then records it by that name"
"""Advice for a proxy of torch.fx where the value must be known."""


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """The way in which one Python type travels through the dispatcher.

    Attributes:
        spelling: the dispatcher's type, such as `Tensor?[]` or `int`.
        to_dispatcher: turns a value of a call into the dispatcher's; None if they are the same.
        from_dispatcher: the inverse, for kernels and rules.
        choices: the strings of a `Literal` of such, which travel as they are; None for any other type.
        example: a value as a call writes it, for messages; empty if it follows from the spelling.
    """

    spelling: str
    to_dispatcher: Conversion | None = None
    from_dispatcher: Conversion | None = None
    choices: tuple[str, ...] | None = None
    example: str = ""


class UnexpectedError(ValueError):
    """A value that is none of those that an argument takes; says which those are."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(f"expected {expected}, found {found!r}")
        self.expected, self.found = expected, found


class Travelling(dict[str, Any]):  # Any: a member of an Enum, or another value of a `Literal`
    """Values by the text that they travel as. Only a call by way of `torch.ops` can bring another text."""

    def __init__(self, values: Mapping[str, Any], label: str) -> None:
        super().__init__(values)
        self.label = label

    def __missing__(self, text: str) -> NoReturn:
        """Refuse a text without a value."""
        problem = f"{text!r} is not a value of an argument that travels as text"
        do = "give torch.ops one of the texts above, or call the op itself, which takes the values"
        raise KernelError(self.label, problem, expected=f"one of {', '.join(map(repr, self))}", do=do)


def literal(values: tuple[Any, ...]) -> ArgumentType | None:  # Any: what `Literal` takes
    """Return the type of one of a few values: their common type, members of one Enum as such, else their repr."""
    plain = tuple(value for value in values if value is not None)
    kinds = {type(value) for value in plain}
    if len(kinds) == 1 and issubclass(next(iter(kinds)), enum.Enum):
        found = _members(plain)
    elif not plain or not kinds <= {str, int, bool}:
        return None
    elif kinds == {str}:
        found = ArgumentType("str", _choice(plain), choices=plain, example=repr(plain[0]))
    elif len(kinds) == 1:
        found = ArgumentType({int: "SymInt", bool: "bool"}[kinds.pop()], _choice(plain), example=repr(plain[0]))
    else:
        found = _of_several_types(plain)
    return found if len(plain) == len(values) else optional(found)


def enumeration(annotation: type[enum.Enum]) -> ArgumentType:
    """Return the type of an `Enum`: the name of the member, as str; of a `Flag`, whose values combine, as int."""
    if issubclass(annotation, enum.Flag):
        return _flag(annotation)

    def to_name(value: Any) -> str:  # Any: a member, or wrongly something else
        if isinstance(value, str) and not isinstance(value, annotation) and value in annotation.__members__:
            return value
        if not isinstance(value, annotation):
            members = ", ".join(f"{annotation.__name__}.{name}" for name in annotation.__members__)
            raise UnexpectedError(f"one of {members}", value)
        return value.name

    by_name = Travelling(annotation.__members__, annotation.__name__)  # an Enum of strings has the __getitem__ of str
    return ArgumentType("str", to_name, by_name.__getitem__, example=_name_first(annotation))


def instance(annotation: type, name: str) -> ArgumentType:
    """Return the type of a class that is registered with torch under a name: its instances travel as they are."""

    def check(value: Any) -> Any:  # Any: an instance, or wrongly something else
        if not torch.compiler.is_dynamo_compiling() and not isinstance(value, annotation):  # Dynamo has a stand-in
            raise ValueError(f"expected an instance of {annotation.__name__}, found {value!r}")
        return value

    return ArgumentType(name, check, example=f"{annotation.__name__}(...)")


def optional(inner: ArgumentType) -> ArgumentType:
    """Return the type of the same or None."""
    converts = (_unless_none(inner.to_dispatcher), _unless_none(inner.from_dispatcher))
    return ArgumentType(f"{inner.spelling}?", *converts, inner.choices, inner.example)


def list_of(element: ArgumentType) -> ArgumentType:
    """Return the type of a list; kernels get their own copy."""
    spelling, example = f"{element.spelling}[]", element.example and f"[{element.example}]"
    to_dispatcher = element.to_dispatcher
    if element.spelling.startswith("str") and to_dispatcher is None:
        to_dispatcher = _as_it_is  # the dispatcher takes a str for a list of its letters
    return ArgumentType(spelling, _each(to_dispatcher, list), _each(element.from_dispatcher, list), example=example)


def tuple_of(element: ArgumentType, length: int | None) -> ArgumentType:
    """Return the type of a tuple, of a fixed length or of any; the dispatcher makes it a list."""
    back = _each(element.from_dispatcher, tuple) or tuple
    example = element.example and f"({', '.join([element.example] * (length or 2))})"
    if length is not None:
        to_dispatcher = _of_length(element.to_dispatcher, length)
        return ArgumentType(f"{element.spelling}[{length}]", to_dispatcher, back, example=example)
    return ArgumentType(f"{element.spelling}[]", list_of(element).to_dispatcher, back, example=example)


def sizes(value: Any) -> Any:  # Any: a torch.Size, a tuple or a list of sizes, or wrongly something else
    """Return a `torch.Size` as the list that it travels as.

    What is not a sequence is left to the dispatcher to refuse.
    """
    return list(value) if isinstance(value, (list, tuple)) else value


def device(value: Any) -> Any:  # Any: a torch.device, its name, or wrongly something else
    """Return the device of a name, and anything else as it is."""
    return torch.device(value) if isinstance(value, str) else value


def constant(annotation: type) -> ArgumentType:
    """Return the type of a class of constants of torch: each travels as its name, as str."""
    label = f"torch.{annotation.__name__}"

    def to_name(value: Any) -> str:  # Any: a constant, or wrongly something else
        if not isinstance(value, annotation):
            raise ValueError(f"expected a {label}, found {value!r}")
        return next(name for name, one in by_name.items() if one is value)  # Dynamo of 2.15 cannot trace str(value)

    by_name = {name: value for name, value in vars(torch).items() if isinstance(value, annotation)}
    back = Travelling(by_name, label).__getitem__
    return ArgumentType("str", to_name, back, example=f"torch.{next(iter(by_name))}")


def generator(value: Any) -> Any:  # Any: a torch.Generator, or wrongly something else
    """Refuse what torch.compile cannot hold, in words that say what to do."""
    if not isinstance(value, torch.Generator):
        raise ValueError(f"expected a torch.Generator, found {value!r}")
    if torch.compiler.is_dynamo_compiling():
        raise ValueError(f"{GENERATOR_IN_GRAPH}: call the op outside the compiled function")
    return value


def _members(members: tuple[enum.Enum, ...]) -> ArgumentType:
    """Return the type of a `Literal` of members of one Enum, and possibly None."""
    whole = enumeration(type(members[0]))
    names = {member.name for member in members}

    def to_name(value: Any) -> Any:  # Any: a member, or wrongly something else
        if value not in members and value not in names:
            raise UnexpectedError(f"one of {', '.join(map(str, members))}", value)
        return whole.to_dispatcher(value) if whole.to_dispatcher is not None else value

    return ArgumentType(
        whole.spelling, to_name, whole.from_dispatcher, example=f"{type(members[0]).__name__}.{members[0].name}"
    )


def _name_first(annotation: type[enum.Enum]) -> str:
    return f"{annotation.__name__}.{next(iter(annotation.__members__), '...')}"


def _flag(annotation: type[enum.Flag]) -> ArgumentType:
    def to_bits(value: Any) -> int:  # Any: a member or several, or wrongly something else
        if not isinstance(value, annotation):
            members = ", ".join(f"{annotation.__name__}.{name}" for name in annotation.__members__)
            raise ValueError(f"expected {members}, or several joined by |, found {value!r}")
        bits: int = value.value
        return bits

    return ArgumentType("int", to_bits, annotation, example=_name_first(annotation))


def _choice(values: tuple[Any, ...]) -> Conversion:
    """Return what finds the value among `values` that is meant: True is not 1, and 1.0 is not either."""

    def choose(value: Any) -> Any:
        if isinstance(value, (str, int, torch.SymInt)):
            for candidate in values:
                if isinstance(candidate, bool) == isinstance(value, bool) and candidate == value:
                    return candidate
        raise UnexpectedError(f"one of {', '.join(map(repr, values))}", value)

    return choose


def _of_several_types(values: tuple[Any, ...]) -> ArgumentType:
    choose = _choice(values)
    by_repr = Travelling({repr(value): value for value in values}, f"Literal[{', '.join(map(repr, values))}]")
    return ArgumentType("str", lambda value: repr(choose(value)), by_repr.__getitem__, example=repr(values[0]))


def _unless_none(convert: Conversion | None) -> Conversion | None:
    if convert is None:
        return None

    def convert_or_none(value: Any) -> Any:  # Any: what `convert` takes and gives, or None
        try:
            return None if value is None else convert(value)
        except UnexpectedError as error:
            raise UnexpectedError(f"{error.expected}, None", error.found) from None

    return convert_or_none


def _each(convert: Conversion | None, container: type) -> Conversion | None:
    """Return the conversion of a sequence, element by element; None if elements need none."""
    if convert is None:
        return None
    return lambda values: container([convert(value) for value in _sequence(values)])


def _as_it_is(value: Any) -> Any:
    return value


def _of_length(convert: Conversion | None, length: int) -> Conversion:
    def check(values: Any) -> list[Any]:  # Any: a tuple, or wrongly something else
        if not isinstance(values, (list, tuple)) or len(values) != length:
            raise ValueError(f"expected a tuple of length {length}, found {show(values)}")
        return list(values) if convert is None else [convert(value) for value in values]

    return check


def _sequence(values: Any) -> Any:  # Any: a list or a tuple, or wrongly something else
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"expected a list or a tuple, found {show(values)}")
    return values


# What a text "module:name" names, in modules that this process has imported: a text never decides what is imported.
#
# Functions and classes travel through the dispatcher by name, and exported programs hold such names as plain text,
# which whoever edits the file chooses.


def find_imported(path: str) -> Any:  # Any: whatever has that name
    """Return what has a path in this process, or None; nothing is imported."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def reason_and_advice(path: str) -> tuple[str, str]:
    """Return why nothing is found at a path, and what to do."""
    module = path.partition(":")[0]
    if module in sys.modules:
        return f"{path!r}: its module has nothing of that name", f"keep the name in {module}"
    advice = f"import {module} first, if you trust what holds the name: a text does not decide what is imported"
    return f"{path!r}: its module is not imported in this process", advice


HOMES = ("torch", "torch.nn.functional", "torch.special")
"""Where builtins of torch are looked for that do not say where they are from."""


def static_type(argument: str, refuse: Refusal, *, is_optional: bool) -> ArgumentType:
    """Return how a static argument of an op travels."""
    found = ArgumentType("str", path_of, functools.partial(_load, argument, refuse), example="torch.relu")
    return optional(found) if is_optional else found


def path_of(value: Any) -> str:  # Any: a function or class, or wrongly something else
    """Return the name by which a function or class can be imported, here and in any process that has its module."""
    path, problem = _path_or_problem(value)
    if problem:
        raise ValueError(problem)
    return path


@constant_in_graphs  # Dynamo guards on which function it is given
def _path_or_problem(value: Any) -> tuple[str, str]:
    if not callable(value):
        return "", f"expected a function or a class, found {show(value)}"
    path = next((path for path in _candidates(value) if find_imported(path) is value), None)
    if path is not None:
        return path, ""
    return "", (
        f"expected a function or class that can be imported, found {_describe(value)}: define it at the top "
        "level of a module, and pass what varies as arguments of the op"
    )


def _candidates(value: Any) -> list[str]:
    """Return what its path may be: its own word for it, or where torch shows it."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return []
    module = getattr(value, "__module__", None) or "torch._C"
    shown = [f"{home}:{name.rpartition('.')[2]}" for home in HOMES]
    own = f"{module}:{name}"
    return [*shown, own] if own.startswith("torch._") else [own, *shown]


def _load(argument: str, refuse: Refusal, path: str) -> Any:  # Any: what was passed
    """Return what has a path."""
    found = find_imported(path)
    if found is not None:
        return found
    reason, advice = reason_and_advice(path)
    raise KernelError(
        refuse.op,
        f"the static argument '{argument}' names what cannot be found",
        expected="'module:name' of a function or class in a module that is imported in this process",
        found=reason,
        declared=refuse.location,
        do=advice,
    )


def _describe(value: Any) -> str:
    """Return the obstacle, in one phrase."""
    if isinstance(value, functools.partial):
        return "a functools.partial"
    if inspect.ismethod(value):
        return f"the bound method {value.__qualname__}"
    name = str(getattr(value, "__qualname__", ""))
    if "<lambda>" in name:
        return "a lambda"
    if "<locals>" in name:
        return f"{name}, which is local to a function"
    return f"{show(value)}, which is not what its module has under that name"
