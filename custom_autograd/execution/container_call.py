"""Generates what `op(...)` runs where arguments or results are containers, around the call of the flat op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.containers import argument_tree
from custom_autograd.containers.argument_tree import ArgumentTree
from custom_autograd.execution.source import Source, compile_source, own_names, refuse_more
from custom_autograd.registration.registry import OpRecord


def make_call(
    record: OpRecord, tree: ArgumentTree, flat: Callable[..., Any], name: str, first: str
) -> Callable[..., Any]:
    """Return the call that takes containers apart for the flat one, and puts together what it returns."""
    source = source_of(record, tree, name, first)
    helpers = argument_tree.values(tree, record.name, record.declaration.location, flat)
    own = tree.signature.parameters.values()
    helpers["refuse_more"] = refuse_more(record.name, [(one.kind, one.default is not one.empty) for one in own])
    namespace = compile_source(source.text, f"{record.name} {name} with containers", source.namespace(helpers))
    call: Callable[..., Any] = namespace[source.own(name)]
    call.__qualname__ = record.name
    return call


def source_of(record: OpRecord, tree: ArgumentTree, name: str, first: str) -> Source:
    """Return the source of that call."""
    source = Source(own_names(record.declaration.schema, record.declaration.name.name) | set(tree.signature.parameters))
    source.lines(*argument_tree.lines(tree, record.name, f"${name}", first))
    return source
