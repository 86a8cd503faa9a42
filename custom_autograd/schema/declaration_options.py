"""What the author of an op said about its schema, and the error that answers what cannot be."""

from __future__ import annotations

import torch

from custom_autograd.core.errors import DeclarationError
from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DeclarationOptions:
    """The author's options for the schema of an op, next to the function itself."""

    op: str
    mutates: tuple[str, ...] | str
    schema: str | None
    outputs: tuple[str, ...] | None
    hidden: tuple[str, ...]
    non_differentiable: tuple[str, ...]
    tags: tuple[torch.Tag, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    static: tuple[str, ...] = ()
    inline: str | None = None
    checkpoint: str | None = None
    described: tuple[str, ...] = ()  # the new outputs, as a line of shapes names them


@dataclass(frozen=True, slots=True)
class Refusal:
    """Makes the error of a declaration, with the op and its location."""

    op: str
    location: str

    def __call__(self, problem: str, **facts: str | None) -> DeclarationError:
        """Return the error that says so."""
        return DeclarationError(self.op, problem, declared=self.location, **facts)
