"""The terms on which a kernel is registered: its name, turn, condition, and the memory layouts that it relies on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import KernelError, RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import advise, quote, show
from custom_autograd.core.signatures import find_signature
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.source import Source, arguments_of, parameters_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.kernel import Kernel, flat_kernel
from custom_autograd.schema.schema import Argument, Schema
from custom_autograd.values.kernel_results import spans
from custom_autograd.values.tensors import tensors_in

if TYPE_CHECKING:
    from custom_autograd.containers.argument_tree import ArgumentTree
    from custom_autograd.registration.kernel import Condition


# Lays tensors out as a kernel declares.
#
# def kernel(x, weight, eps):
#     return $function(x.contiguous(), weight.contiguous(), eps)          layouts="contiguous"


LAYOUTS = {
    "contiguous": "{0}.contiguous()",
    "contiguous_rows": "({0} if {0}.dim() == 0 or {0}.stride(-1) == 1 else {0}.contiguous())",
    "channels_last": "$in_format({0}, 4, $torch.channels_last)",
    "channels_last_3d": "$in_format({0}, 5, $torch.channels_last_3d)",
}
"""Source of a tensor in a layout: itself where it has it. In "contiguous_rows" the last dimension has stride 1."""

Function = Callable[..., Any]  # Any: takes and returns what the schema declares


def wrapper_of(schema: Schema, name: str, layouts: Mapping[str, str]) -> Callable[[Function], Function]:
    """Return a decorator that makes a kernel of a function that relies on layouts."""
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
        made: Function = source.compiled(f"{name} kernel", values)["kernel"]
        return made

    return wrap


def _source(schema: Schema, layouts: Mapping[str, str]) -> Source:
    source = Source(schema.argument_names)
    prepared = {argument.name: _prepared(argument, layouts.get(argument.name)) for argument in schema.arguments}
    with source.block(f"def $kernel({parameters_of(schema)})"):
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
        """Return the arguments that were copied, each with its copy."""
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


NAME = r"\w[\w.+-]*"


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Arguments of `register_kernel` about a kernel (Any: whatever was passed).

    Attributes:
        name: what `use_kernel` calls it; None for the device type, or "default".
        when: a function of some of the arguments that says whether it takes them.
        priority: a higher one has its turn earlier.
        layouts: the layouts that it relies on, by argument, or one for all.
        inline: compiled graphs hold what it does in place of the op.
    """

    name: Any = None
    when: Any = None
    priority: Any = 0
    layouts: Any = None
    inline: bool = False


def make_kernel(
    declaration: Declaration,
    device_type: str | None,
    function: Callable[..., Any],
    location: str,
    options: KernelOptions,
) -> Kernel:
    """Return the kernel of one device type (Any: takes and returns what the schema declares)."""
    refuse = partial(declaration.origin(location).error, RegistrationError)
    layouts = _layouts(declaration.schema, options.layouts, refuse)
    wrap = wrapper_of(declaration.schema, str(declaration.name), layouts)
    name = device_type or "default" if options.name is None else options.name
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        raise refuse("a kernel cannot have this name", expected="letters, digits and any of _ . + -", found=show(name))
    if type(options.priority) is not int:
        raise refuse("the priority of a kernel is an int", expected="an int, such as 1", found=show(options.priority))
    when = None if options.when is None else _condition(declaration, options.when, refuse)
    own = wrap(flat_kernel(declaration, function))
    inlined, given = bool(options.inline), tuple(layouts.items())
    return Kernel(device_type, own, location, name, options.priority, when, function, wrap, inlined, given)


def _condition(declaration: Declaration, when: Any, refuse: Callable[..., RegistrationError]) -> Condition:
    valid = adapter_of(declaration).argument_names()
    signature = find_signature(when) if callable(when) else None
    if signature is None:
        raise refuse(
            "when= takes a function of some of the op's arguments",
            expected="a function of " + quote(valid),
            found=show(when),
        )
    names = []
    for parameter in signature.parameters.values():
        if parameter.name in valid and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            problem = f"when= has a parameter {str(parameter)!r}, which is not an argument of the op"
            raise declaration.origin(location_of(when)).error(
                RegistrationError, problem, expected=quote(valid), do=advise(parameter.name, valid)
            )
    from custom_autograd.registration.kernel import Condition  # loaded for kernels with one

    return Condition(when, tuple(names), location_of(when), _binder(declaration), str(declaration.name))


def _binder(declaration: Declaration) -> Callable[..., dict[str, Any]]:
    """Return a kernel's call -> the arguments by name, with the containers that the op's author sees."""
    binder = Binder(declaration.schema)
    return adapter_of(declaration).around(lambda *args, **kwargs: binder.given(*args, **kwargs), _binder_of_containers)


def _binder_of_containers(tree: ArgumentTree, given: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def bind(*args: Any, **kwargs: Any) -> dict[str, Any]:
        positional, keywords = tree.arguments(given(*args, **kwargs))
        return dict(tree.signature.bind(*positional, **keywords).arguments)

    return bind


def _layouts(schema: Schema, given: Any, refuse: Callable[..., RegistrationError]) -> dict[str, str]:
    """Return the layout of each argument that has to have one."""
    if given is None:
        return {}
    tensors = [argument.name for argument in schema.tensor_arguments]
    layouts = dict.fromkeys(tensors, given) if isinstance(given, str) else given
    if not isinstance(layouts, Mapping):
        raise refuse(
            "layouts= takes a layout, or a dict of layouts by argument", expected=quote(LAYOUTS), found=show(given)
        )
    for name, layout in layouts.items():
        if name not in tensors:
            raise refuse(
                f"layouts= names {name!r}, which is not a tensor argument",
                expected=quote(tensors),
                do=advise(name, tensors),
            )
        if layout not in LAYOUTS:
            raise refuse(
                f"layouts= names a layout for '{name}' that is none",
                expected=quote(LAYOUTS),
                found=show(layout),
                do=advise(layout, LAYOUTS),
            )
    if schema.is_view:
        raise refuse(
            "a kernel that returns a view cannot have its arguments copied", expected="no layouts=", found=schema.text
        )
    return dict(layouts)
