"""`needs` and `meta` of a rule: attributes by name, and a helpful error for a name that is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from custom_autograd.core.messages import quote, suggest


class Named(SimpleNamespace):
    """Values by name, read as attributes."""

    def __getattr__(self, name: str) -> Any:  # Any: bools, lists of bools, or metadata
        if name.startswith("__"):
            raise AttributeError(name)
        names = vars(self)
        advice = suggest(name, names) or f"there are {quote(names)}"
        raise AttributeError(f"there is nothing named '{name}' here: {advice}")
