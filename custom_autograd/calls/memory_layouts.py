"""Lays tensors out as a kernel declares.

def kernel(x, weight, eps):
    return $function(x.contiguous(), weight.contiguous(), eps)          layouts="contiguous"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.calls.passing import arguments_of
from custom_autograd.calls.source import Source, compile_source
from custom_autograd.core.errors import KernelError
from custom_autograd.core.schema import Argument, Schema
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.called_by_position import keywords_of, positional_of
from custom_autograd.values.results import spans
from custom_autograd.values.tensors import tensors_in

LAYOUTS = {
    "contiguous": "{0}.contiguous()",
    "contiguous_rows": "({0} if {0}.dim() == 0 or {0}.stride(-1) == 1 else {0}.contiguous())",
    "channels_last": "$in_format({0}, 4, $torch.channels_last)",
    "channels_last_3d": "$in_format({0}, 5, $torch.channels_last_3d)",
}
"""Source of a tensor in a layout: itself where it has it. In "contiguous_rows" the last dimension has stride 1."""

Function = Callable[..., Any]  # Any: takes and returns what the schema says


def wrapper_of(schema: Schema, name: str, layouts: Mapping[str, str]) -> Callable[[Function], Function]:
    """Return a decorator that makes a kernel of a function that relies on layouts.

    Args:
        schema: of the op.
        name: of the op, for tracebacks.
        layouts: by argument, one of LAYOUTS.
    """
    if not layouts:
        return lambda function: function
    source = _source(schema, layouts)

    def wrap(function: Function) -> Function:
        values = {
            "function": function,
            "torch": torch,
            "in_format": in_format,
            "copies_of": Copies(name).of,
            "written_back": written_back,
        }
        namespace = compile_source(source.text, f"{name} kernel", source.namespace(values))
        made: Function = namespace[source.own("kernel")]
        return made

    return wrap


def _source(schema: Schema, layouts: Mapping[str, str]) -> Source:
    source = Source(schema.argument_names)
    keywords = keywords_of(schema)
    parameters = [*positional_of(schema), *(["*"] if keywords and not _has_star(schema) else []), *keywords]
    prepared = {argument.name: _prepared(argument, layouts.get(argument.name)) for argument in schema.arguments}
    with source.block(f"def $kernel({', '.join(parameters)})"):
        written = [a.name for a in schema.mutated_arguments if a.name in layouts]
        for name in written:
            source.line(f"$own${name} = {prepared[name]}")
            prepared[name] = f"$own${name}"
        if written:
            pairs = ", ".join(f'"{name}": ({name}, $own${name})' for name in written)
            tensors = ", ".join(argument.name for argument in schema.tensor_arguments)
            source.line(f"$copies = $copies_of({{{pairs}}}, [{tensors}])")
        source.line(f"$result = $function({arguments_of(schema, prepared)})")
        source.line("return $written_back($copies, $result)" if written else "return $result")
    return source


def _prepared(argument: Argument, layout: str | None) -> str:
    """Return source of an argument in its layout."""
    star = "*" * argument.is_variadic
    if layout is None:
        return star + argument.name
    one = LAYOUTS[layout]
    if argument.is_tensor_list:
        item = one.format("$item")
        each = f"[None if $item is None else {item} for $item in {argument.name}]"
        return f"{star}{each}" if star or not argument.is_optional else f"None if {argument.name} is None else {each}"
    prepared = one.format(argument.name)
    return f"None if {argument.name} is None else {prepared}" if argument.is_optional else prepared


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of mutated arguments in the layout that a kernel needs, written back after the call."""

    op: str

    def of(self, arguments: Mapping[str, tuple[Any, Any]], tensors: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
        """Return the arguments that were copied, each with its copy.

        Args:
            arguments: by name, what was given, and what the kernel gets (Any: a tensor, a list of them, None).
            tensors: all that was given.

        Raises:
            KernelError: nothing can be written back: elements share memory, or it is that of another argument.
        """
        found = []
        for name, (given, own) in arguments.items():
            for tensor, copy in zip(tensors_in([given]), tensors_in([own]), strict=True):
                if copy is not tensor:
                    self._check(name, tensor, tensors_in(tensors))
                    found.append((tensor, copy))
        return found

    def _check(self, name: str, tensor: Tensor, others: Sequence[Tensor]) -> None:
        if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            problem = f"argument '{name}' is written to, and is expanded: several of its elements lie in one place"
            found = f"strides {tensor.stride()} for shape {tuple(tensor.shape)}"
            raise KernelError(self.op, problem, found=found, do=f"pass '{name}'.clone()")
        if sum(not set(spans(tensor)).isdisjoint(spans(other)) for other in others) > 1:
            problem = f"argument '{name}' is written to, has to be copied, and lies in the memory of another argument"
            do = f"pass it in the layout that the kernel needs ('{name}'.contiguous()), or a copy of the other one"
            raise KernelError(self.op, problem, do=do)


def written_back(copies: Sequence[tuple[Tensor, Tensor]], result: Any) -> Any:  # Any: what a kernel returns
    """Return the result of a kernel with arguments for their copies, after writing the copies back to them."""
    for tensor, copy in copies:
        tensor.copy_(copy)
    if isinstance(result, tuple):
        return tuple(_given(copies, value) for value in result)
    return _given(copies, result)


def _given(copies: Sequence[tuple[Tensor, Tensor]], value: Any) -> Any:
    return next((tensor for tensor, copy in copies if copy is value), value)


def in_format(tensor: Tensor, dims: int, memory_format: torch.memory_format) -> Tensor:
    """Return the tensor in a memory format for tensors of some number of dimensions; any other as it is."""
    return tensor.contiguous(memory_format=memory_format) if tensor.dim() == dims else tensor


def _has_star(schema: Schema) -> bool:
    return any(argument.is_variadic for argument in schema.arguments)
