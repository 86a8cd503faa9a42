"""A dispatcher call -> all arguments by name, defaults included, in the user's form; and back to a call.

The dispatcher leaves out every argument that equals its default, also one that was passed on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from custom_autograd.core.lazy import Lazy
from custom_autograd.execution.source import Source, defaults, has_list_by_default, signature
from custom_autograd.schema.schema import Argument, Schema


class Binder:
    """Binds the arguments of one op's calls."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    @Lazy
    def _converted(self) -> list[Argument]:
        return [argument for argument in self.schema.arguments if argument.from_dispatcher is not None]

    @Lazy
    def _is_variadic(self) -> bool:
        return any(argument.is_variadic for argument in self.schema.arguments)

    @Lazy
    def _by_position(self) -> Sequence[str]:
        is_plain = not self._is_variadic and not any(map(has_list_by_default, self.schema.arguments))
        return self.schema.argument_names if is_plain else ()

    @Lazy
    def _bind(self) -> Callable[..., dict[str, Any]]:
        """Return the function, generated when it is first needed: most ops are declared to be called in few ways."""
        return self._generate(for_dispatcher=True)

    @Lazy
    def _bind_given(self) -> Callable[..., dict[str, Any]]:
        return self._generate(for_dispatcher=False) if self._is_variadic else self._bind

    def given(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:  # Any: what the schema declares
        """Return the arguments of a kernel's call by name: as the dispatcher's, but for those behind a star."""
        if not kwargs and len(args) == len(self._by_position):  # nothing need be generated for this
            return dict(zip(self._by_position, args, strict=True))
        return self._bind_given(*args, **kwargs)

    def _generate(self, *, for_dispatcher: bool) -> Callable[..., dict[str, Any]]:
        source = Source(self.schema.argument_names)
        with source.block(f"def $bind({signature(self.schema, for_dispatcher=for_dispatcher)})"):
            pairs = [f'"{a.name}": {_fresh(a)}' for a in self.schema.arguments]
            source.line(f"return {{{', '.join(pairs)}}}")
        bind: Callable[..., dict[str, Any]] = source.compiled("bind", defaults(self.schema))["bind"]
        return bind

    def raw(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:  # Any: what the schema declares
        """Return all arguments by name, as the dispatcher holds them."""
        return self._bind(*args, **kwargs)

    def arguments(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:  # Any: what the schema declares
        """Return all arguments by name, as users see them."""
        found = self.raw(*args, **kwargs)
        for argument in self._converted:
            assert argument.from_dispatcher is not None
            found[argument.name] = argument.from_dispatcher(found[argument.name])
        return found

    def converted(self, raw: Mapping[str, Any]) -> dict[str, Any]:  # Any: as above
        """Return arguments as the dispatcher holds them -> as users see them."""
        positional, keywords = self.call(raw)
        return self.arguments(*positional, **keywords)

    def call(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:  # Any: as above
        """Return arguments by name -> positional ones, and keyword-only ones."""
        positional = [arguments[a.name] for a in self.schema.arguments if not a.is_keyword_only]
        keywords = {a.name: arguments[a.name] for a in self.schema.arguments if a.is_keyword_only}
        return positional, keywords

    def user_call(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:  # Any: as above
        """Return the same for a function called like the op itself, which takes some as `*name`."""
        positional, keywords = self.call(arguments)
        return (spread(self.schema, positional) if self._is_variadic else positional), keywords


def _fresh(argument: Argument) -> str:
    """Return source of an argument, with a new list for the list that is its default."""
    if not has_list_by_default(argument):
        return argument.name
    copied = f"$list({argument.name})"
    return f"None if {argument.name} is None else {copied}" if argument.is_optional else copied


def spread(schema: Schema, positional: list[Any]) -> list[Any]:  # Any: one value per positional argument
    """Return the values with those of `*name` one by one at the end."""
    is_variadic = [argument.is_variadic for argument in schema.arguments]
    if True not in is_variadic:
        return positional
    position = is_variadic.index(True)
    return [*positional[:position], *positional[position]]


def gather(schema: Schema, positional: Sequence[Any]) -> list[tuple[str, Any]]:  # Any: as above
    """Return each value with the name of its argument, for a call that may omit some; the inverse of `spread`."""
    names = schema.argument_names
    is_variadic = [argument.is_variadic for argument in schema.arguments]
    if True not in is_variadic:
        return list(zip(names, positional, strict=False))
    position = is_variadic.index(True)
    found = list(zip(names, positional[:position], strict=False))
    return [*found, (names[position], list(positional[position:]))] if len(found) == position else found
