"""Generates `call`, what `op(...)` runs, and `kernel`, the kernel of a backend; and results that are inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import raise_if_any
from custom_autograd.execution import kernel_call, refusals
from custom_autograd.execution.kernel_call import write_reading
from custom_autograd.execution.source import (
    Absent,
    Source,
    call_kernel,
    defaults_in_body,
    flat_defaults_in_body,
    pass_on,
    refuse_more,
    signature,
    tuple_of,
    values_of,
    write_conversions,
    write_defaults,
)
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.arguments import error_of_type
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private import guards
from custom_autograd.torch_private.compiler import is_tracing, outside_compilation, traced_as
from custom_autograd.torch_private.functions import alias_of
from custom_autograd.torch_private.storages import may_share
from custom_autograd.torch_private.transforms import is_forward_mode, is_transforming

if TYPE_CHECKING:
    from custom_autograd.containers.argument_tree import ArgumentTree


# Results that are an input: `aliases={"out": "x"}` lets a kernel return its input as it is.
#
# The dispatcher, and graphs that hold the op, must see new memory, so that a kernel at its key returns a copy.
# `op(...)` alone, in a plain call, spares it: the result is then a view of the input, which autograd treats as one.
# What is written to it reaches the input, or is refused where a gradient would be lost.


class _Here(threading.local):
    is_wanted = False


_here = _Here()


def want() -> None:
    """Let the kernel that runs next in this thread return an input without a copy, if the call is plain."""
    is_watched = is_transforming() or guards.torch_dispatch_modes() or guards.torch_function_modes()
    _here.is_wanted = not is_watched and not is_forward_mode()


def drop() -> None:
    """Take that back."""
    _here.is_wanted = False


def share_or_copy(_: str, tensor: Tensor) -> Tensor:
    """Return what a kernel at its dispatch key returns for an input."""
    is_wanted, _here.is_wanted = _here.is_wanted, False
    return alias_of(tensor) if is_wanted else tensor.clone()


def as_input(output: Tensor, given: Tensor, *, is_saved: bool) -> Tensor:
    """Return what a node's forward returns: the input itself for its memory, of which autograd makes a view.

    A copy, if the node saves it: what is written to the view would change what the backward reads.
    """
    if output is None or not may_share(output, given):
        return output
    return output.clone() if is_saved else given


def as_view(output: Tensor, given: Tensor) -> Tensor:
    """Return what a call that records nothing returns: a view of the input for its memory."""
    if output is None or not may_share(output, given):
        return output
    if not given.requires_grad:
        return given.view_as(given)
    view: Tensor = guards.without_grad_mode(_cut_off_view, given)
    return view


def _cut_off_view(tensor: Tensor) -> Tensor:
    """Return a view that refuses to be written to, because grad mode is off, and needs no gradient."""
    return tensor.detach().view_as(tensor)


NAMES = {"want_shared": want, "drop_shared": drop, "as_input": as_input, "as_view": as_view}
"""What generated source calls."""


def make_call(record: OpRecord, overload: Callable[..., Any] | None) -> Callable[..., Any]:
    """Make the call through the dispatcher. It follows from the schema alone, so rules may change without it.

    Any: takes and returns what the schema declares, here and below.
    """
    return _compile(record, _source(record, write_call), "call", _helpers(record, overload))


def _helpers(record: OpRecord, overload: Callable[..., Any] | None) -> dict[str, Any]:
    return {
        "overload": overload,
        "output": record.definition.output,
        **refusals.helpers(record.declaration),
        "is_compiling": torch.compiler.is_compiling,
        "named_tuple": record.declaration.schema.named_tuple,
        "absent": Absent,
    }


def make_public_call(record: OpRecord) -> Callable[..., Any]:
    """Return what `op(...)` runs. It follows from the schema alone, too."""
    helpers = {
        **_helpers(record, record.overload),
        "entry": record,
        **NAMES,
        "observed": record.definition.observed,
        "profiler": torch.autograd.profiler,
        "refuse_more": refuse_more(record.name, [(a.kind, a.has_default) for a in record.declaration.schema.arguments]),
        "refuse_type": _refuse_type(record),
    }
    made = _outside(record, _compile(record, _source(record, write_public_call), "op", helpers), "op", "$self")
    assert record.dispatched is not None  # the op is attached
    record.dispatched.generate()
    made.__name__ = "__call__"  # a bound method pickles by its name
    return traced_as(record.dispatched.in_graphs)(outside_compilation(made))


def _refuse_type(record: OpRecord) -> Callable[[Exception], None]:
    """Return what raises KernelError for an exception of the dispatcher about the type of an argument of this op."""

    def refuse(error: Exception) -> None:
        examples = {argument.name: argument.example for argument in record.declaration.schema.arguments}
        operator = str(record.definition.name).partition(".")[0]
        raise_if_any(error_of_type(record.declaration.origin(), operator, error, examples))

    return refuse


def make_traced_call(record: OpRecord) -> Callable[..., Any]:
    """Return what Dynamo traces in place of `op(...)`."""
    helpers = _helpers(record, record.overload)
    return _outside(record, _compile(record, _source(record, write_traced_call), "traced", helpers), "traced", "$self")


def make_outer_call(record: OpRecord, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call through the dispatcher that takes and returns containers, if the author of the op does."""
    return _outside(record, call, "call", "")


def _outside(record: OpRecord, flat: Callable[..., Any], name: str, first: str) -> Callable[..., Any]:
    """Return the same call for an op whose author sees containers; any other call as it is."""

    def around(tree: ArgumentTree, inner: Callable[..., Any]) -> Callable[..., Any]:
        return _with_containers(record, tree, inner, name, first)

    return adapter_of(record.declaration).around(flat, around)


def publish(record: OpRecord) -> None:
    """Give the classes of the op's handles the `__call__` that is generated for the op, once.

    Before the first eager call, or before a compiler has seen the op: Dynamo guards on the code of `__call__`, and
    would compile every caller again.
    """
    with record.lock:  # other threads may do the same
        for handle in list(record.road.uncalled):
            type(handle).__call__ = make_public_call(record)  # type: ignore[method-assign]  # its class is its own
            record.road.uncalled.discard(handle)
            record.road.called.add(handle)
    if record.road.native is not None:
        record.road.native.take_over()


def withdraw(record: OpRecord) -> None:
    """Take that back, so that compiled callers, which are guarded by it, are traced again."""
    with record.lock:  # as above
        record.road.uncalled |= record.road.called
        record.road.called.clear()
        for handle in record.road.uncalled:
            if "__call__" in vars(type(handle)):  # generated, or one of passing.py
                del type(handle).__call__
        record.call_behind = None
    if record.road.native is not None:
        record.road.native.take_over()


def make_ready(record: OpRecord) -> None:
    """Publish the op when its fake is asked before its first eager call, but not in the midst of a trace.

    Dynamo starts a trace again after a graph break, and has to meet the same frames: then `__call__` stays as it is.
    """
    if not is_tracing():
        publish(record)
    elif record.call_behind is None:
        record.call_behind = make_public_call(record)


def _compile(record: OpRecord, source: Source, name: str, helpers: dict[str, Any]) -> Callable[..., Any]:
    return _named(record, source.compiled(f"{record.name} {name}", {**helpers, **values_of(record.declaration)})[name])


def _named(record: OpRecord, call: Callable[..., Any]) -> Callable[..., Any]:
    call.__qualname__ = record.name  # what Python's own errors call it: "ns::op() missing 1 required ..."
    return call


def call_source(record: OpRecord) -> str:
    """Return the generated source of both, under a heading."""
    declaration = record.declaration
    heading = (
        f"# {declaration.name}, generated by custom_autograd from its schema and rules ({declaration.location})\n"
        f"# {declaration.name}{declaration.schema.text}\n"
    )
    inside = [_source(record, write).text for write in (write_public_call, write_traced_call, write_call)]
    texts = adapter_of(declaration).around(inside, lambda tree, flat: [_outside_source(record, tree), *flat])
    return heading + "".join("\n\n" + text for text in texts)


def _outside_source(record: OpRecord, tree: ArgumentTree) -> str:
    return _source_with_containers(record, tree, "op", "$self").text


def _with_containers(
    record: OpRecord, tree: ArgumentTree, flat: Callable[..., Any], name: str, first: str
) -> Callable[..., Any]:
    """Return the call that takes containers apart for the flat one, and puts together what it returns."""
    from custom_autograd.containers import argument_tree  # imported for ops with containers

    source = _source_with_containers(record, tree, name, first)
    helpers = {**argument_tree.values(tree, record.name, record.declaration.location, flat), "absent": Absent}
    own = tree.signature.parameters.values()
    helpers["refuse_more"] = refuse_more(record.name, [(one.kind, one.default is not one.empty) for one in own])
    return _named(record, source.compiled(f"{record.name} {name} with containers", helpers)[name])


def _source_with_containers(record: OpRecord, tree: ArgumentTree, name: str, first: str) -> Source:
    from custom_autograd.containers import argument_tree  # as above

    source = Source.of(record.declaration, *tree.signature.parameters)
    in_body = defaults_in_body(tree.parameters().defaults)
    source.lines(*argument_tree.lines(tree, record.name, f"${name}", first, in_body))
    return source


def _source(record: OpRecord, write: Callable[[Source, Schema, str], None]) -> Source:
    source = Source.of(record.declaration)
    write(source, record.declaration.schema, record.name)
    return source


def write_public_call(source: Source, schema: Schema, name: str) -> None:
    """Write `op`: `call`, with errors that say what a call of the op may have."""
    in_body = flat_defaults_in_body(schema)
    parameters = signature(schema, first="$self", rest="$more", for_dispatcher=False, in_body=in_body)
    with source.block(f"def $op({parameters})"):
        source.line(f'"""What {name}(...) runs."""')
        if not any(argument.is_variadic for argument in schema.arguments):
            with source.block("if $more"):
                source.line("$refuse_more($more)")
        _write_conversions(source, schema, "$output")
        if schema.may_return_inputs:  # see `share_or_copy`
            source.line("$want_shared()")
        with _explaining(source):
            overload = "($observed if $profiler._is_profiler_enabled else $overload)"
            _write_return(source, schema, f"{overload}({pass_on(schema)})")
        if schema.may_return_inputs:
            with source.block("finally"):
                source.line("$drop_shared()")


def write_traced_call(source: Source, schema: Schema, name: str) -> None:
    """Write what Dynamo traces in place of `op`; the fake, which it calls, refuses None."""
    in_body = flat_defaults_in_body(schema)
    with source.block(f"def $traced({signature(schema, first='$self', for_dispatcher=False, in_body=in_body)})"):
        source.line(f'"""What Dynamo traces in place of {name}(...)."""')
        _write_conversions(source, schema, "$output", is_traced=True)
        _write_return(source, schema, f"$overload({pass_on(schema)})")


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
    in_body = flat_defaults_in_body(schema)
    with source.block(f"def $call({signature(schema, for_dispatcher=False, in_body=in_body)})"):
        source.line(f'"""{name}(...) by way of the dispatcher."""')
        _write_conversions(source, schema, "$output")
        _write_return(source, schema, f"$overload({pass_on(schema)})")


def _write_conversions(source: Source, schema: Schema, output: str, *, is_traced: bool = False) -> None:
    write_defaults(source, flat_defaults_in_body(schema))
    write_conversions(source, schema)
    refusals.write_refusals(source, schema, is_traced=is_traced)
    if schema.is_one_tuple:  # see the note in dispatcher_library.py
        with source.block("if $is_compiling()"):
            source.line(f"return ({output}({pass_on(schema)}),)")


def _write_return(source: Source, schema: Schema, result: str) -> None:
    """Write what a call returns of all results: hidden outputs are dropped, a NamedTuple is made."""
    if not schema.hidden_outputs and schema.named_tuple is None:
        source.line(f"return {result}")
        return
    is_one = len(schema.outputs) == 1
    each = ["$results" if is_one else f"$results[{at}]" for at in range(len(schema.outputs))]
    visible = [one for one, output in zip(each, schema.outputs, strict=True) if not output.is_hidden]
    source.line(f"$results = {result}")
    if schema.named_tuple is not None and not schema.hidden_outputs:
        source.line(f"return $named_tuple({', '.join(visible)})")
    else:
        source.line(f"return {visible[0] if len(visible) == 1 else tuple_of(visible)}")


def write_kernel(source: Source, schema: Schema, *, is_checked: bool, is_watched: bool) -> None:
    """Write `kernel_of`, which makes the kernel for a function: it runs it outside autograd and reads its result."""
    with source.block("def $kernel_of($serving)"):
        if is_watched:
            source.line("$kinds, $watched = $set(), $watch($serving)")
        with source.block(f"def $kernel({signature(schema, for_dispatcher=True)})"):
            source.line('"""What runs at the dispatch key of a backend."""')
            source.line("$function = $serving")
            if is_watched:
                source.line(f"$kind = {_kind(schema)}")
                with source.block("if $kind not in $kinds"):  # the first call of each kind is checked in full
                    source.line("$function = $watched")
            call = call_kernel(schema, is_from_dispatcher=True)
            kernel_call.write_kernel_call(source, call, "not $is_grad_enabled()")
            write_reading(source, schema, str(is_checked))
            if is_watched:
                with source.block("if $function is $watched"):
                    source.line("$kinds.add($kind)")
                    with source.block("if $road.native is not None"):
                        source.line("$road.native.expect()")
            source.line("return $result")
        source.line("return $kernel")


def _kind(schema: Schema) -> str:
    """Return source of the kind of a call: dtype and number of dimensions of the first tensor, and which are given."""
    first = next((argument.name for argument in schema.tensor_arguments if argument.type == "Tensor"), None)
    facts = [] if first is None else [f"{first}.dtype", f"{first}.dim()"]
    facts += [f"{argument.name} is None" for argument in schema.tensor_arguments if argument.is_optional]
    facts += [f"$len({argument.name})" for argument in schema.tensor_arguments if argument.type.endswith("[]")]
    return tuple_of(facts)
