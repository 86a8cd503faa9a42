"""Generates `call`, what `op(...)` runs, and `kernel`, what stands at each backend's dispatch key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from custom_autograd.calls import numbers
from custom_autograd.calls.arity import refuse_more
from custom_autograd.calls.kernel_call import write_kernel_call
from custom_autograd.calls.parameters import conversions, defaults, own_names, signature, write_conversions
from custom_autograd.calls.passing import call_kernel, pass_on
from custom_autograd.calls.reading import write_reading
from custom_autograd.calls.source import Source, compile_source
from custom_autograd.core.schema import Schema
from custom_autograd.dispatch import direct_source as direct
from custom_autograd.pytrees import call_source as structured
from custom_autograd.pytrees.argument_tree import Form
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private import guards
from custom_autograd.torch_private.compiler import is_tracing
from custom_autograd.values.results import ResultReader


def make_call(entry: Entry) -> Callable[..., Any]:
    """What calls the op by way of the dispatcher. It follows from the schema alone, so rules may change without it.

    Any: takes and returns what the schema says, here and below.
    """
    helpers = {
        "overload": entry.overload,
        "output": entry.output,
        **numbers.HELPERS,
        "refuse_tracked": numbers.refuse_tracked(entry.declaration),
        "is_compiling": torch.compiler.is_compiling,
        "named_tuple": entry.declaration.schema.named_tuple,
    }
    return _compile(entry, _source(entry, write_call), "call", helpers)


def make_public_call(entry: Entry) -> Callable[..., Any]:
    """Return what `op(...)` runs: the direct road, or what `make_call` made. It follows from the schema alone, too."""
    helpers = {
        **direct.helpers(),
        **numbers.HELPERS,
        "instead": entry.kernels.instead,
        "entry": entry,
        "roads": entry.roads,
        "refuse_tracked": numbers.refuse_tracked(entry.declaration),
        "refuse_more": refuse_more(entry.name, [(a.kind, a.has_default) for a in entry.declaration.schema.arguments]),
        "named_tuple": entry.declaration.schema.named_tuple,
        "read_result": ResultReader(entry.declaration, entry.kernels.describe, share=_view).read,
    }
    return _outside(entry, _compile(entry, _source(entry, write_public_call), "op", helpers), "op", "$self")


def _view(_: str, tensor: Tensor) -> Tensor:
    """Return what a call returns for an input that its kernel returned as it is, where no gradient is recorded.

    Autograd knows it for a view, so that what is written to it later reaches the input, or is refused.
    """
    if not tensor.requires_grad:
        return tensor.view_as(tensor)
    view: Tensor = guards.without_grad_mode(_cut_off_view, tensor)
    return view


def _cut_off_view(tensor: Tensor) -> Tensor:
    """Return a view that refuses to be written to, because grad mode is off, and needs no gradient."""
    return tensor.detach().view_as(tensor)


def make_traced(entry: Entry, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `op(...)` runs while Dynamo traces it."""
    return _outside(entry, call, "call", "")


def _outside(entry: Entry, flat: Callable[..., Any], name: str, first: str) -> Callable[..., Any]:
    """Return the same call for an op whose author sees containers; any other call as it is."""
    return adapter_of(entry.declaration).around(flat, lambda form, inner: _around(entry, form, inner, name, first))


def _around(entry: Entry, form: Form, flat: Callable[..., Any], name: str, first: str) -> Callable[..., Any]:
    source = _outside_source(entry, form, name, first)
    helpers = structured.values(form, entry.name, entry.declaration.location, flat)
    own = form.signature.parameters.values()
    helpers["refuse_more"] = refuse_more(entry.name, [(one.kind, one.default is not one.empty) for one in own])
    namespace = compile_source(source.text, f"{entry.name} {name} with containers", source.namespace(helpers))
    call: Callable[..., Any] = namespace[source.own(name)]
    call.__qualname__ = entry.name
    return call


def _outside_source(entry: Entry, form: Form, name: str, first: str) -> Source:
    source = Source(own_names(entry.declaration.schema, entry.declaration.name.name) | set(form.signature.parameters))
    source.lines(*structured.lines(form, entry.name, f"${name}", first))
    return source


def publish(entry: Entry) -> None:
    """Give the classes of the op's handles the `__call__` that is generated for the op, once.

    Before the first eager call, or before a compiler has seen the op: Dynamo guards on the code of `__call__`, and
    would compile every caller again.
    """
    for handle in list(entry.uncalled):
        type(handle).__call__ = make_public_call(entry)  # type: ignore[method-assign]  # each handle has its own class
        entry.uncalled.discard(handle)


def make_ready(entry: Entry) -> None:
    """Publish the op when its fake is asked before its first eager call, but not in the midst of a trace.

    Dynamo starts a trace again after a graph break, and has to meet the same frames: then `__call__` stays as it is.
    """
    if not is_tracing():
        publish(entry)
    elif entry.call_behind is None:
        entry.call_behind = make_public_call(entry)


def _compile(entry: Entry, source: Source, name: str, helpers: dict[str, Any]) -> Callable[..., Any]:
    values = {**helpers, **defaults(entry.declaration.schema), **conversions(entry.declaration)}
    namespace = compile_source(source.text, f"{entry.name} {name}", source.namespace(values))
    call: Callable[..., Any] = namespace[source.own(name)]
    call.__qualname__ = entry.name  # what Python's own errors call it: "ns::op() missing 1 required ..."
    return call


def call_source(entry: Entry) -> str:
    """Return the generated source of both, under a heading."""
    declaration = entry.declaration
    heading = (
        f"# {declaration.name}, generated by custom_autograd from its schema and rules ({declaration.location})\n"
        f"# {declaration.name}{declaration.schema.text}\n"
    )
    inside = [_source(entry, write).text for write in (write_public_call, write_call)]
    texts = adapter_of(declaration).around(
        inside, lambda form, flat: [_outside_source(entry, form, "op", "$self").text, *flat]
    )
    return heading + "".join("\n\n" + text for text in texts)


def _source(entry: Entry, write: Callable[[Source, Schema, str], None]) -> Source:
    schema = entry.declaration.schema
    source = Source(own_names(schema, entry.declaration.name.name))
    write(source, schema, entry.name)
    return source


def write_public_call(source: Source, schema: Schema, name: str) -> None:
    """Write `op`: the direct road, for calls that are known to need no dispatcher, or else `call`."""
    writer = direct.DirectWriter(source, schema)
    with source.block(f"def $op({signature(schema, first='$self', rest='$more', for_dispatcher=False)})"):
        source.line(f'"""What {name}(...) runs."""')
        if not any(argument.is_variadic for argument in schema.arguments):
            with source.block("if $more"):
                source.line("$refuse_more($more)")
        if writer.is_possible:
            with source.block("if not $is_dynamo_compiling() and $compiling_callback() is None"):
                write_conversions(source, schema)
                writer.write(["not $torch_function_modes()", *direct.MODES], is_public=True)
                if any(argument.to_dispatcher is not None for argument in schema.arguments):  # converted once only
                    numbers.write_refusals(source, schema)
                    direct.write_return(source, schema, f"$entry.overload({pass_on(schema)})", is_read=False)
        source.line(f"return $entry.call({pass_on(schema, to_user=True)})")


def write_call(source: Source, schema: Schema, name: str) -> None:
    """Write `call`: it converts what the dispatcher cannot hold, and drops hidden outputs."""
    with source.block(f"def $call({signature(schema, for_dispatcher=False)})"):
        source.line(f'"""{name}(...) by way of the dispatcher."""')
        write_conversions(source, schema)
        numbers.write_refusals(source, schema)
        if schema.is_one_tuple:  # see the note in one_tuple.py
            with source.block("if $is_compiling()"):
                source.line(f"return ($output({pass_on(schema)}),)")
        direct.write_return(source, schema, f"$overload({pass_on(schema)})", is_read=False)


def write_kernel(source: Source, schema: Schema, *, is_checked: bool) -> None:
    """Write `kernel`: finds the function, runs it outside autograd, reads its result."""
    with source.block(f"def $kernel({signature(schema, first='$device', for_dispatcher=True)})"):
        source.line('"""What stands at a backend\'s dispatch key."""')
        source.line("$function = $choose($device)")
        write_kernel_call(source, call_kernel(schema, is_from_dispatcher=True), "not $is_grad_enabled()")
        write_reading(source, schema, str(is_checked))
        source.line("return $result")
