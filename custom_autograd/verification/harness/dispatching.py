"""The functions that checks call: an op through the dispatcher, repeatable, and kernels with their conditions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.execution.bind import gather
from custom_autograd.registration.kernel import Kernel
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import Argument, Schema
from custom_autograd.torch_private.verification import Overload, arguments_of_overload
from custom_autograd.values.tensors import plain

Function: TypeAlias = Callable[..., object]
"""A kernel, a reference or an op: arguments of any kind, tensors in any container out."""


def call_overload(record: OpRecord, /, *args: object, **kwargs: object) -> object:
    """Call the overload of an op with the arguments that the op takes.

    An op that returns a tuple of one is called as graphs do: torch cannot keep sizes as symbols in a tuple.
    """
    call = to_dispatcher(record.declaration.schema, Sample(*args, **kwargs))
    if record.definition.output is not None:
        return (cast(Function, record.definition.output)(*call.args, **call.kwargs),)
    return cast(Function, record.overload)(*call.args, **call.kwargs)


def to_dispatcher(schema: Schema, sample: Sample) -> Sample:
    """Return the call in the dispatcher's values: an Enum by its name, what follows a star as a list."""
    by_name = {argument.name: argument for argument in schema.arguments}
    args = [_converted(by_name.get(name), value) for name, value in gather(schema, sample.args)]
    kwargs = {name: _converted(by_name.get(name), value) for name, value in sample.kwargs.items()}
    given = {*schema.argument_names[: len(args)], *kwargs}
    filled = {
        argument.name: _converted(argument, argument.default)
        for argument in schema.arguments
        if argument.is_filled and argument.name not in given
    }
    return sample.with_arguments(args, {**kwargs, **filled})


def _converted(argument: Argument | None, value: object) -> object:
    return value if argument is None or argument.to_dispatcher is None else argument.to_dispatcher(value)


def has_generator(sample: Sample) -> bool:
    """Return True if a call is given a generator."""
    return any(isinstance(value, torch.Generator) for value in (*sample.args, *sample.kwargs.values()))


def device_type_of(sample: Sample) -> str:
    """Return the device type on which a call runs: that of its tensors that are not on the CPU."""
    types = (tensor.device.type for tensor in sample.tensors())
    return next((name for name in types if name != "cpu"), "cpu")


def takes_instances(overload: Overload) -> bool:
    """Return True if an argument of an op is an instance of a class that is registered with torch."""
    return any(argument.type.rstrip("?") == "PyObject" for argument in arguments_of_overload(overload))


def repeatable(schema: Schema, function: Function) -> Function:
    """Return the same function, which leaves the generators that it is given as they were: each call draws the same."""
    if not schema.has_generator:
        return function

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        if torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        return function(*map(_copied, args), **{name: _copied(value) for name, value in kwargs.items()})

    return call


def _copied(value: object) -> object:
    return value.clone_state() if isinstance(value, torch.Generator) else value


def completing(complete: Callable[[Sample], Sample], function: Callable[..., object]) -> Callable[..., object]:
    """Return a function without defaults of its own, called with every argument that a call leaves out."""

    def call(*args: object, **kwargs: object) -> object:
        completed = complete(Sample(*args, **kwargs))
        return function(*completed.args, **completed.kwargs)

    return call


class KernelDeclined(KernelUnavailable):
    """The condition of a kernel does not accept the arguments."""


def key_of_kernel(kernel: Kernel) -> str:
    """Return the default kernel as "", others as "cpu" or "cpu 'name'"."""
    return "" if kernel.title == "default" else kernel.title


def device_of_kernel(key: str) -> str:
    """Return the device type in the key of a kernel, "" for any."""
    device = key.partition(" ")[0]
    return "" if device == "default" else device


def label_of_kernel(key: str) -> str:
    """Return what a message calls the kernel of a key: "the cpu kernel 'name'"."""
    device, _, name = (key or "default").partition(" ")
    return f"the {device} kernel {name}".rstrip()


def conditional(kernel: Kernel) -> Callable[..., object]:
    """Return the kernel, which raises KernelDeclined for what its condition does not accept."""
    when = kernel.when
    if when is None:
        return kernel.function

    def call(*args: object, **kwargs: object) -> object:
        reason = when.refusal(args, kwargs)
        if reason is not None:
            raise KernelDeclined(f"the {kernel.label} does not take the sample: {reason or when.text}")
        result: object = kernel.function(*args, **kwargs)
        return result

    return call


def as_dispatched(kernel: Callable[..., object]) -> Callable[..., object]:
    """Return the kernel, called as the dispatcher calls it: with views resolved that are conjugated or negated."""

    def call(*args: object, **kwargs: object) -> object:
        return kernel(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})

    return call
