"""A dispatcher call -> all arguments by name, defaults included, in the user's form.

The dispatcher leaves out every argument that equals its default, also one that was passed on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from custom_autograd.core.schema import Schema
from custom_autograd.runtime.call import defaults, signature
from custom_autograd.runtime.source import Source, compile_source


class Binder:
    """Binds the arguments of one op's calls."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        source = Source()
        with source.block(f"def bind({signature(schema, for_dispatcher=True)})"):
            source.line("return {" + ", ".join(f'"{name}": {name}' for name in schema.argument_names) + "}")
        self._bind = compile_source(source.text, "bind", defaults(schema))["bind"]
        self._converted = [argument for argument in schema.arguments if argument.from_dispatcher is not None]

    def raw(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # Any: what the schema says
        """All arguments by name, as the dispatcher holds them."""
        found: dict[str, Any] = self._bind(*args, **kwargs)
        return found

    def arguments(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # Any: what the schema says
        """All arguments by name, as users see them."""
        found = self.raw(*args, **kwargs)
        for argument in self._converted:
            assert argument.from_dispatcher is not None
            found[argument.name] = argument.from_dispatcher(found[argument.name])
        return found

    def call(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:  # Any: as above
        """Arguments by name -> positional ones, and keyword-only ones."""
        positional = [arguments[a.name] for a in self.schema.arguments if not a.is_keyword_only]
        keywords = {a.name: arguments[a.name] for a in self.schema.arguments if a.is_keyword_only}
        return positional, keywords
