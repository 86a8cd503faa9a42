"""The options of `custom_op`: their types for type checkers, and what authors wrote, normalised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch

from custom_autograd.capabilities import checkpoint as checkpointing
from custom_autograd.capabilities.inlining import capability as inlining
from custom_autograd.core.locations import location_of_declaration
from custom_autograd.core.messages import show
from custom_autograd.core.option_types import check_type, listed, several
from custom_autograd.schema.annotations import DeclarationOptions, Refusal
from custom_autograd.shapes.rule import DType

if TYPE_CHECKING:

    class Options(TypedDict, total=False):
        """The options of `custom_op` but `hidden`, for type checkers."""

        mutates_args: str | Iterable[str]
        device_types: str | Sequence[str] | None
        schema: str | None
        tags: Sequence[torch.Tag] | None
        outputs: Sequence[str] | None
        non_differentiable: Sequence[str]
        aliases: Mapping[str, str] | None
        reference: bool
        static: Sequence[str]
        inline: Literal["reference"] | None
        checkpoint: Literal["save", "recompute"] | None
        shapes: str | None
        along: str | Sequence[str] | None
        dtypes: Mapping[str, DType] | None
        flops: str | None
        numbers: Mapping[str, Any] | None  # Any: a function, or a value of the argument
        replace: bool


def options_of(
    name: str,
    declared: object,
    mutates_args: str | Iterable[str],
    schema: str | None,
    outputs: Sequence[str] | None,
    hidden: Sequence[str],
    non_differentiable: Sequence[str],
    tags: Sequence[torch.Tag] | None,
    aliases: Mapping[str, str] | None,
    static: Sequence[str],
    inline: str | None,
    checkpoint: str | None,
) -> DeclarationOptions:
    """Return the arguments of `custom_op`, normalised; `declared` is what it decorates."""
    refuse = Refusal(name, location_of_declaration(declared))
    if inline not in (None, inlining.REFERENCE):
        problem = "inline= takes what a compiled graph holds in place of the op"
        raise refuse(problem, expected="'reference', or None", found=show(inline))
    if checkpoint not in (None, *checkpointing.DEFAULTS):
        problem = "checkpoint= takes what selective activation checkpointing does with the op"
        raise refuse(problem, expected="'save', 'recompute', or None", found=show(checkpoint))
    mutates: str | tuple[str, ...] = (
        "unknown" if mutates_args == "unknown" else listed(refuse, "mutates_args", mutates_args)
    )
    return DeclarationOptions(
        op=name,
        mutates=mutates,
        schema=schema,
        outputs=None if outputs is None else listed(refuse, "outputs", outputs),
        hidden=listed(refuse, "hidden", hidden),
        non_differentiable=listed(refuse, "non_differentiable", non_differentiable),
        tags=_tags(refuse, tags),
        aliases=_aliases(refuse, aliases),
        static=listed(refuse, "static", static),
        inline=inline,
        checkpoint=checkpoint,
    )


def _aliases(refuse: Refusal, aliases: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    found = {} if aliases is None else aliases
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for pair in found.items() for name in pair):
        problem = "aliases= takes a name of an input for a name of an output"
        raise refuse(problem, expected="{'output': 'x'}", found=show(aliases))
    return tuple(found.items())


def _tags(refuse: Refusal, tags: torch.Tag | Sequence[torch.Tag] | None) -> tuple[torch.Tag, ...]:
    found = () if tags is None else several(tags)
    for tag in found:
        check_type(refuse, "tags", tag, (torch.Tag,), "dispatcher tags", example="(torch.Tag.pointwise,)")
    return found
