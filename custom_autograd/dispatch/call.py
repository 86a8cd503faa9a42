"""Generates `call`, what `op(...)` runs, and `kernel`, the kernel at each backend's dispatch key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from custom_autograd.calls import kernel_call, refusals
from custom_autograd.calls.arity import refuse_more
from custom_autograd.calls.parameters import own_names, signature, values_of, write_conversions
from custom_autograd.calls.passing import call_kernel, pass_on
from custom_autograd.calls.reading import write_reading
from custom_autograd.calls.source import Source, compile_source
from custom_autograd.core.schema import Schema
from custom_autograd.core.wrong_types import error_of_type
from custom_autograd.dispatch import direct_source as direct
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import guards
from custom_autograd.torch_private.compiler import is_tracing
from custom_autograd.values.results import ResultReader

if TYPE_CHECKING:
    from custom_autograd.pytrees.argument_tree import ArgumentTree


def make_call(record: OpRecord) -> Callable[..., Any]:
    """Make the call through the dispatcher. It follows from the schema alone, so rules may change without it.

    Any: takes and returns what the schema says, here and below.
    """
    helpers = {
        "overload": record.overload,
        "output": record.output,
        **refusals.helpers(record.declaration),
        "is_compiling": torch.compiler.is_compiling,
        "named_tuple": record.declaration.schema.named_tuple,
    }
    return _compile(record, _source(record, write_call), "call", helpers)


def make_public_call(record: OpRecord) -> Callable[..., Any]:
    """Return what `op(...)` runs: the direct call, or what `make_call` made. It follows from the schema alone, too."""
    helpers = {
        **direct.helpers(),
        **refusals.helpers(record.declaration),
        **kernel_call.helpers(record),
        "entry": record,
        "direct_calls": record.direct_calls,
        "refuse_more": refuse_more(record.name, [(a.kind, a.has_default) for a in record.declaration.schema.arguments]),
        "refuse_type": _refuse_type(record),
        "named_tuple": record.declaration.schema.named_tuple,
        "read_result": ResultReader(record.declaration, record.kernels.describe, share=_view).read,
    }
    return _outside(record, _compile(record, _source(record, write_public_call), "op", helpers), "op", "$self")


def _refuse_type(record: OpRecord) -> Callable[[Exception], None]:
    """Return what raises KernelError for an exception of the dispatcher about the type of an argument of this op."""

    def refuse(error: Exception) -> None:
        examples = {argument.name: argument.example for argument in record.declaration.schema.arguments}
        operator = str(record.dispatcher_name).partition(".")[0]
        told = error_of_type(record.declaration.origin(), operator, error, examples)
        if told is not None:
            raise told from None

    return refuse


def _view(_: str, tensor: Tensor) -> Tensor:
    """Return what a call returns for an input that its kernel returned as it is, where no gradient is recorded.

    Autograd treats it as a view, so that what is written to it later reaches the input, or is refused.
    """
    if not tensor.requires_grad:
        return tensor.view_as(tensor)
    view: Tensor = guards.without_grad_mode(_cut_off_view, tensor)
    return view


def _cut_off_view(tensor: Tensor) -> Tensor:
    """Return a view that refuses to be written to, because grad mode is off, and needs no gradient."""
    return tensor.detach().view_as(tensor)


def make_traced(record: OpRecord, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `op(...)` runs while Dynamo traces it."""
    return _outside(record, call, "call", "")


def _outside(record: OpRecord, flat: Callable[..., Any], name: str, first: str) -> Callable[..., Any]:
    """Return the same call for an op whose author sees containers; any other call as it is."""

    def around(tree: ArgumentTree, inner: Callable[..., Any]) -> Callable[..., Any]:
        from custom_autograd.dispatch import container_call  # imported for ops with containers

        return container_call.make_call(record, tree, inner, name, first)

    return adapter_of(record.declaration).around(flat, around)


def publish(record: OpRecord) -> None:
    """Give the classes of the op's handles the `__call__` that is generated for the op, once.

    Before the first eager call, or before a compiler has seen the op: Dynamo guards on the code of `__call__`, and
    would compile every caller again.
    """
    with record.lock:  # other threads may do the same
        for handle in list(record.uncalled):
            type(handle).__call__ = make_public_call(record)  # type: ignore[method-assign]  # its class is its own
            record.uncalled.discard(handle)
    if record.direct_calls is not None:
        record.direct_calls.take_over()


def make_ready(record: OpRecord) -> None:
    """Publish the op when its fake is asked before its first eager call, but not in the midst of a trace.

    Dynamo starts a trace again after a graph break, and has to meet the same frames: then `__call__` stays as it is.
    """
    if not is_tracing():
        publish(record)
    elif record.call_behind is None:
        record.call_behind = make_public_call(record)


def _compile(record: OpRecord, source: Source, name: str, helpers: dict[str, Any]) -> Callable[..., Any]:
    values = {**helpers, **values_of(record.declaration)}
    namespace = compile_source(source.text, f"{record.name} {name}", source.namespace(values))
    call: Callable[..., Any] = namespace[source.own(name)]
    call.__qualname__ = record.name  # what Python's own errors call it: "ns::op() missing 1 required ..."
    return call


def call_source(record: OpRecord) -> str:
    """Return the generated source of both, under a heading."""
    declaration = record.declaration
    heading = (
        f"# {declaration.name}, generated by custom_autograd from its schema and rules ({declaration.location})\n"
        f"# {declaration.name}{declaration.schema.text}\n"
    )
    inside = [_source(record, write).text for write in (write_public_call, write_call)]
    texts = adapter_of(declaration).around(inside, lambda tree, flat: [_outside_source(record, tree), *flat])
    return heading + "".join("\n\n" + text for text in texts)


def _outside_source(record: OpRecord, tree: ArgumentTree) -> str:
    from custom_autograd.dispatch import container_call  # imported for ops with containers

    return container_call.source_of(record, tree, "op", "$self").text


def _source(record: OpRecord, write: Callable[[Source, Schema, str], None]) -> Source:
    schema = record.declaration.schema
    source = Source(own_names(schema, record.declaration.name.name))
    write(source, schema, record.name)
    return source


def write_public_call(source: Source, schema: Schema, name: str) -> None:
    """Write `op`: the direct call, for calls that are known to need no dispatcher, or else `call`."""
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
                    refusals.write_refusals(source, schema)
                    with _explaining(source):
                        direct.write_return(source, schema, f"$entry.overload({pass_on(schema)})", is_read=False)
        with _explaining(source):
            source.line(f"return $entry.dispatched.call({pass_on(schema, to_user=True)})")


@contextmanager
def _explaining(source: Source) -> Iterator[None]:
    """Write a call of the dispatcher, whose errors about types are those of the op."""
    with source.block("try"):
        yield
    with source.block("except $Exception as $error"):
        source.line("$refuse_type($error)")
        source.line("raise")


def write_call(source: Source, schema: Schema, name: str) -> None:
    """Write `call`: it converts what the dispatcher cannot hold, and drops hidden outputs."""
    with source.block(f"def $call({signature(schema, for_dispatcher=False)})"):
        source.line(f'"""{name}(...) by way of the dispatcher."""')
        write_conversions(source, schema)
        refusals.write_refusals(source, schema)
        if schema.is_one_tuple:  # see the note in one_tuple.py
            with source.block("if $is_compiling()"):
                source.line(f"return ($output({pass_on(schema)}),)")
        direct.write_return(source, schema, f"$overload({pass_on(schema)})", is_read=False)


def write_kernel(source: Source, schema: Schema, *, is_checked: bool) -> None:
    """Write `kernel`: finds the function, runs it outside autograd, reads its result."""
    with source.block(f"def $kernel({signature(schema, first='$device', for_dispatcher=True)})"):
        source.line('"""What stands at a backend\'s dispatch key."""')
        source.line("$function = $choose($device)")
        kernel_call.write_kernel_call(source, call_kernel(schema, is_from_dispatcher=True), "not $is_grad_enabled()")
        write_reading(source, schema, str(is_checked))
        source.line("return $result")
