"""A C++ function as a gradient rule: an op of its own, whose values it computes.

op.register_backward(cpp_kernel("norm.cpp", "norm_backward"))

m.def("norm_backward(Tensor grad, Tensor x, Tensor weight) -> (Tensor, Tensor)")     bound by these names, unbuilt

norm__backward(Tensor grad, Tensor x, Tensor weight) -> (Tensor, Tensor)             the op: native calls, graphs
    fake: each gradient is contiguous, and like the input that it belongs to
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError, RegistrationError
from custom_autograd.core.messages import quote, suggest
from custom_autograd.core.signatures import read_signature
from custom_autograd.declare import all_or_nothing
from custom_autograd.kernels import native_kernels
from custom_autograd.kernels.native_kernels import SLOTS
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import META, NEEDS
from custom_autograd.schema.schema import Argument
from custom_autograd.torch_private.definitions import parse_schema
from custom_autograd.values.tensors import first_tensor

if TYPE_CHECKING:
    from custom_autograd.kernels.cpp import CppKernel

Declare = Callable[..., Any]  # Any: custom_op and the op that it returns, a layer above


@contextmanager
def in_place_of(
    rule: object, record: OpRecord, named: Sequence[str], declare: Declare, *, replace: bool
) -> Iterator[Any]:  # Any: a rule, as it is registered
    """Give what is registered for a rule: the rule itself, or for one in C++ its op, which goes if the context raises.

    Args:
        rule: a function, or a `CppKernel`.
        record: of the op whose gradients it returns.
        named: the inputs whose gradients it returns, in that order; none for all differentiable ones.
        declare: `custom_op`.
        replace: a rule of that kind may exist.
    """
    if isinstance(rule, FunctionType):
        yield rule
        return
    from custom_autograd.kernels.cpp import CppKernel  # most rules are functions

    if not isinstance(rule, CppKernel):
        yield rule
        return
    with all_or_nothing():
        yield _rule_in_cpp(record, rule, named, declare, replace=replace)


def _rule_in_cpp(
    record: OpRecord, kernel: CppKernel, named: Sequence[str], declare: Declare, *, replace: bool
) -> CppRule:
    """Declare the op that computes gradients in C++, from tensors that arrive contiguous, and return its rule."""
    declaration, schema = record.declaration, record.declaration.schema
    differentiable = {argument.name: argument for argument in schema.differentiable_arguments}
    inputs = [differentiable[name] for name in named if name in differentiable] if named else [*differentiable.values()]
    suffix = f"__grad_{'_'.join(named)}" if named else "__backward"
    definition = _definition_of(record, kernel)
    taken = _check(record, kernel, inputs, definition)
    outputs = [f"grad_{argument.name}" for argument in inputs]
    rule = declare(str(declaration.name.suffixed(suffix)), kernel, schema=definition, outputs=outputs, replace=replace)
    places = {argument.name: taken.index(argument.name) for argument in inputs}
    rule.register_kernel(None, layouts="contiguous", replace=True)(_checked(record, kernel, places))
    rule.register_fake(_fake_of(list(places.values())))
    return CppRule(kernel, rule)


class CppRule:
    """Calls the op of a rule; native code calls the C++ function itself where the op would do nothing else.

    The nodes of native code look at the gradients that a rule returns.
    """

    __slots__ = ("__dict__", "__weakref__", *SLOTS)

    def __init__(self, kernel: CppKernel, op: Callable[..., Any]) -> None:
        self.kernel = self.__wrapped__ = kernel
        self.op = op
        self.__signature__ = read_signature(op)
        self._is_offered = False

    @property
    def written_in(self) -> str:
        """Return the source and the function, for messages."""
        return self.kernel.written_in

    def __reduce__(self) -> tuple[Any, ...]:  # which the keys of compile caches read, too: not what native code keeps
        return type(self), (self.kernel, self.op)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: what the schema declares
        """Return the gradients."""
        found = self.op(*args, **kwargs)
        if not torch.compiler.is_compiling() and not self._is_offered and self.kernel.operator is not None:
            self._is_offered = True
            native_kernels.offer(self, replace(self.kernel.operator, is_contiguous=True))
        return found


def _definition_of(record: OpRecord, kernel: CppKernel) -> str:
    """Return the schema of the function."""
    from custom_autograd.kernels.cpp import definitions_in  # loaded with the C++ kernels

    refuse = record.declaration.origin(kernel.written_in).error
    try:
        shown = definitions_in(kernel.source)
    except OSError as error:
        problem = "the source of the rule cannot be read"
        raise refuse(RegistrationError, problem, found=str(error), do="give cpp_kernel the file's path") from error
    found = shown.get(kernel.function)
    if found is None:
        problem = f"the source does not show what '{kernel.function}' takes, by which the rule is bound"
        expected = f'm.def("{kernel.function}(Tensor grad, ...) -> ...") with its schema in string literals'
        do = suggest(kernel.function, shown) or "write it so, or register a Python function that calls the kernel"
        raise refuse(RegistrationError, problem, expected=expected, do=do)
    return found


def _check(record: OpRecord, kernel: CppKernel, inputs: Sequence[Argument], definition: str) -> list[str]:
    """Return the names that a C++ function takes; raise if it cannot be the rule for these inputs."""
    refuse = record.declaration.origin(kernel.written_in).error
    try:
        arguments, results = parse_schema(kernel.function + definition)
    except RuntimeError as error:
        problem = f"the schema of the rule cannot be parsed: {str(error).strip()}"
        do = "write it as in native_functions.yaml: (Tensor grad, Tensor x) -> Tensor"
        raise refuse(RegistrationError, problem, found=definition, do=do) from error
    types = {argument.name: _in_cpp(argument.type) for argument in record.declaration.schema.arguments}
    for argument in arguments:
        found = _in_cpp(argument.type)
        if argument.name in (NEEDS, META):
            do = "register a rule for each input with register_grad: it runs only if that gradient is needed"
            raise refuse(RegistrationError, f"a rule in C++ cannot take '{argument.name}'", found=definition, do=do)
        if argument.is_written:
            problem = f"a rule must not write to '{argument.name}'"
            raise refuse(RegistrationError, problem, found=definition, do="return new tensors")
        if types.get(argument.name, found) != found:
            problem = f"the rule takes '{argument.name}' as another type than the op"
            raise refuse(RegistrationError, problem, expected=types[argument.name], found=found)
    expected = ["Tensor[]" if argument.is_tensor_list else "Tensor" for argument in inputs]
    if expected != [result.type for result in results]:
        problem = f"the rule must return one gradient for each of {quote(argument.name for argument in inputs)}"
        do = "register it with op.register_grad, which takes the inputs whose gradients it returns"
        raise refuse(RegistrationError, problem, expected=", ".join(expected), found=definition, do=do)
    grads = [f"grad_{argument.name}" for argument in inputs]
    returned = [result.name for result in results]
    if set(returned) & set(grads) and any(one and one != grad for one, grad in zip(returned, grads, strict=True)):
        problem = "the rule returns gradients by other names, or in another order, than it is registered for"
        do = "put them in the order of the inputs, or of the names given to register_grad"
        raise refuse(RegistrationError, problem, expected=quote(grads), found=quote(returned), do=do)
    taken = [argument.name for argument in arguments]
    for missing in (argument for argument in inputs if argument.name not in taken):
        problem = f"the rule returns the gradient of '{missing.name}' and does not take '{missing.name}'"
        do = f"add '{missing.type} {missing.name}' to its parameters: a graph takes the shape of the gradient from it"
        raise refuse(RegistrationError, problem, found=definition, do=do)
    return taken


def _checked(record: OpRecord, kernel: CppKernel, places: Mapping[str, int]) -> Callable[..., Any]:
    """Return the function; it raises if a gradient is not like its input, which graphs take for granted."""
    # Any: tensors, lists of them and other values, as the schema declares.

    def run(*values: Any) -> Any:
        found = kernel(*values)
        for (name, place), gradient in zip(places.items(), found if len(places) > 1 else (found,), strict=True):
            given = values[place]
            if isinstance(given, Tensor):
                if not _is_like(gradient, given):
                    raise _unlike(record, kernel, name, gradient, given)
            elif given is not None:
                wrong = next((row for row in zip(gradient, given, strict=True) if not _is_like(*row)), None)
                if wrong is not None:
                    raise _unlike(record, kernel, name, *wrong)
        return found

    return run


def _is_like(gradient: Tensor, given: Tensor) -> bool:
    return gradient.dtype == given.dtype and gradient.shape == given.shape and gradient.device == given.device


def _unlike(record: OpRecord, kernel: CppKernel, name: str, gradient: Tensor, given: Tensor) -> GradientError:
    return record.declaration.origin(kernel.written_in).error(
        GradientError,
        f"the gradient of '{name}' is not like '{name}'",
        expected=f"{given.dtype} {tuple(given.shape)} on {given.device}",
        found=f"{gradient.dtype} {tuple(gradient.shape)} on {gradient.device}",
        do=f"allocate it with allocate_like({name})",
    )


def _in_cpp(type_name: str) -> str:
    """Return the name of a type of the dispatcher, as C++ takes it."""
    return type_name.replace("SymInt", "int")


def _fake_of(places: Sequence[int]) -> Callable[..., Any]:
    """Return the fake of the op: gradients like the inputs in these places."""

    def fake(*values: Any) -> Any:  # Any: what the schema declares
        gradients = [_like(values[place], values) for place in places]
        return tuple(gradients) if len(gradients) > 1 else gradients[0]

    return fake


def _like(value: Any, values: Sequence[Any]) -> Any:  # Any: a tensor, a list of them, or None
    """Return the gradient of one input without its data; an empty one for an input that is None."""
    if isinstance(value, (list, tuple)):
        return [_like(one, values) for one in value]
    if value is None:
        any_tensor = first_tensor(values)
        assert any_tensor is not None
        return any_tensor.new_empty(0)
    assert isinstance(value, Tensor)
    return torch.empty_like(value, memory_format=torch.contiguous_format)
