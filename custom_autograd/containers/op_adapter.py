"""What the author of an op registers -> what is registered with the dispatcher, whether it has containers or not.

For an op without containers both are the same; the adapter of an op with containers translates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.rules import Parameters, check_call, parameters_of
from custom_autograd.schema.schema import Schema

if TYPE_CHECKING:
    from custom_autograd.containers.argument_tree import ArgumentTree

Function = Callable[..., Any]  # Any: a user's function
Values = Mapping[str, Any]  # Any: values of any type by name
T = TypeVar("T")


class OpAdapter:
    """The adapter of an op without containers: everything is registered as its author wrote it.

    Attributes:
        has_containers: an argument or a result is a container.
    """

    has_containers = False

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.schema: Schema = declaration.schema

    def around(self, flat: T, wrap: Callable[[ArgumentTree, T], T]) -> T:
        """Return `wrap(form, flat)` if the op has containers, and `flat` if it does not."""
        return flat

    def argument_names(self) -> tuple[str, ...]:
        """Return the names of the arguments of a call."""
        own = self.parameters()
        return (*own.positional, *own.keywords)

    def parameters(self) -> Parameters:
        """Return the arguments that rules take by position."""
        return parameters_of(self.schema)

    def output_names(self) -> tuple[str, ...]:
        """Return the names of the outputs, hidden ones included."""
        return self.schema.output_names

    def differentiable_names(self) -> tuple[str, ...]:
        """Return the names of the arguments that may carry a gradient."""
        return tuple(argument.name for argument in self.schema.differentiable_arguments)

    def kernel(self, function: Function) -> Function:
        """Return a kernel as the dispatcher calls it."""
        return function

    def accepting(self, title: str, function: Function) -> Function:
        """Return a fake or a reference as the dispatcher calls it, once it is known to accept the arguments."""
        check_call(self.declaration, title, function)
        return function

    def gradient_rule(self, slot: str, function: Function, inputs: tuple[str, ...]) -> tuple[Function, tuple[str, ...]]:
        """Return a gradient rule, and the inputs that it serves."""
        return function, inputs

    def jvp_rule(self, function: Function) -> Function:
        """Return a forward-mode rule."""
        return function

    def drop_in(self, backward: Function, setup_context: Function | None) -> tuple[Function, Function | None]:
        """Return a backward and a setup_context in the style of `torch.library`."""
        return backward, setup_context

    def vmap_rule(self, function: Function) -> Function:
        """Return a batching rule."""
        return function

    def by_name(self, values: Any) -> Any:  # Any: a dict by name, or one value for all
        """Return what is given by names of arguments or outputs, by the names that the dispatcher has."""
        return values

    def labels(self, name: str, values: Values) -> list[str]:
        """Return how messages spell an argument that the dispatcher has, or each item of a list, in quotes."""
        return label_each(name, values[name])

    def mirrored(self, found: Values, values: Values) -> dict[str, Any]:
        """Return what was found of the arguments by name, and in containers of the same structure."""
        return dict(found)


def label_each(path: str, value: Any) -> list[str]:  # Any: a list, or anything else
    """Return a path in quotes, or that of each item of a list."""
    if isinstance(value, (list, tuple)):
        return [f"'{path}[{index}]'" for index in range(len(value))]
    return [f"'{path}'"]


def adapter_of(declaration: Declaration) -> OpAdapter:
    """Return the adapter of an op."""
    if declaration.tree is None:
        return OpAdapter(declaration)
    from custom_autograd.containers.container_adapter import ContainerAdapter  # loaded for ops with containers

    return ContainerAdapter(declaration)
