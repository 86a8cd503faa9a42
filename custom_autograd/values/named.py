"""`needs` and `meta` of a rule: attributes by name, and a helpful error for a name that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from custom_autograd.core.errors import GradientError
from custom_autograd.core.messages import advise, quote


class UnknownNameError(GradientError, AttributeError):
    """A rule reads an attribute of `needs` or `meta` that is not there; `note_rule` adds which rule of which op."""


class Named:
    """Values by name, read as attributes. Plain enough for compiled autograd to trace."""

    def __init__(self, values: Mapping[str, Any]) -> None:  # Any: bools, lists of bools, or metadata
        if torch.compiler.is_dynamo_compiling():  # Dynamo of torch 2.11 cannot trace `vars(self).update`
            for name, value in values.items():
                setattr(self, name, value)
        else:
            vars(self).update(values)  # an argument may have a name that every object has, such as __class__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __getattr__(self, name: str) -> Any:  # Any: as above
        if name.startswith("__"):
            raise AttributeError(name)
        names = list(vars(self))
        problem = f"a rule reads '{name}' of needs or meta, which is not there"
        raise UnknownNameError("a rule", problem, expected=quote(names), found=f"'{name}'", do=advise(name, names))
