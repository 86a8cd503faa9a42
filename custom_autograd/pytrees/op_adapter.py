"""What the author of an op registers -> what is registered with the dispatcher, whether it has containers or not.

For an op without containers both are the same; the adapter of an op with containers translates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from custom_autograd.core.schema import Schema
from custom_autograd.pytrees.adapters import ByName, by_flat_name, check_call, flat_function, flat_kernel_function
from custom_autograd.pytrees.argument_tree import ArgumentTree
from custom_autograd.pytrees.fields import Node, all_nodes
from custom_autograd.pytrees.positional_rules import TorchStyle, flat_vmap
from custom_autograd.registration import rules
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.shorter_rules import Parameters, parameters_of

Function = Callable[..., Any]  # Any: a user's function
Values = Mapping[str, Any]  # Any: values of any type by name
T = TypeVar("T")


class OpAdapter:
    """The adapter of an op without containers: everything is registered as its author wrote it.

    Attributes:
        has_containers: an argument or a result is a container.
        nodes: one for each argument, if there are containers.
    """

    has_containers = False
    nodes: Sequence[Node] = ()

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.schema: Schema = declaration.schema

    def around(self, flat: T, wrap: Callable[[ArgumentTree, T], T]) -> T:
        """Return `wrap(form, flat)` if the op has containers, and `flat` if it does not."""
        return flat

    def argument_names(self) -> tuple[str, ...]:
        """Return the names of the arguments of a call."""
        return self.schema.argument_names

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

    def by_position(self, slot: str, function: Function) -> Function:
        """Return a fake or a reference as the dispatcher calls it."""
        return function

    def accepting(self, title: str, function: Function) -> Function:
        """Return a fake or a reference as the dispatcher calls it, once it is known to accept the arguments.

        Raises:
            RegistrationError: it does not.
        """
        flat = self.by_position(title, function)
        rules.check_call(self.declaration, title, flat)
        return flat

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

    def mirrored(self, found: Values, values: Values) -> dict[str, Any]:
        """Return what was found of the arguments by name, and in containers of the same structure.

        Args:
            found: by the names that the dispatcher has; what is not there is None.
            values: the arguments themselves.
        """
        return dict(found)


class ContainerAdapter(OpAdapter):
    """The adapter of an op with containers."""

    has_containers = True

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(declaration)
        assert isinstance(declaration.tree, ArgumentTree)
        self.tree = declaration.tree
        self.nodes = tuple(all_nodes(self.tree.inputs))

    def around(self, flat: T, wrap: Callable[[ArgumentTree, T], T]) -> T:
        """Override `OpAdapter`."""
        return wrap(self.tree, flat)

    def argument_names(self) -> tuple[str, ...]:
        """Override `OpAdapter`."""
        return tuple(self.tree.signature.parameters)

    def parameters(self) -> Parameters:
        """Override `OpAdapter`."""
        return self.tree.parameters()

    def output_names(self) -> tuple[str, ...]:
        """Override `OpAdapter`."""
        results = self.tree.results
        return super().output_names() if results is None else tuple(node.name for node in results.nodes)

    def differentiable_names(self) -> tuple[str, ...]:
        """Override `OpAdapter`."""
        return ByName(self.tree, self.declaration).differentiable_names()

    def kernel(self, function: Function) -> Function:
        """Override `OpAdapter`; raises RegistrationError if the arguments do not fit."""
        check_call(self.tree, self.declaration, "kernel", function)
        return flat_kernel_function(self.tree, self.schema, function, str(self.declaration.name))

    def by_position(self, slot: str, function: Function) -> Function:
        """Override `OpAdapter`; raises RegistrationError if the arguments do not fit."""
        check_call(self.tree, self.declaration, slot, function)
        return flat_function(self.tree, function, str(self.declaration.name), slot)

    def gradient_rule(self, slot: str, function: Function, inputs: tuple[str, ...]) -> tuple[Function, tuple[str, ...]]:
        """Override `OpAdapter`; raises RegistrationError if a parameter names nothing."""
        by_name = ByName(self.tree, self.declaration)
        return by_name.gradient_rule(slot, function, inputs), by_name.flat_inputs(inputs)

    def jvp_rule(self, function: Function) -> Function:
        """Override `OpAdapter`; raises RegistrationError if a parameter names nothing."""
        return ByName(self.tree, self.declaration).jvp_rule(function)

    def drop_in(self, backward: Function, setup_context: Function | None) -> tuple[Function, Function | None]:
        """Override `OpAdapter`."""
        flat = TorchStyle(self.tree, self.declaration, backward, setup_context)
        return flat.backward, flat.setup

    def vmap_rule(self, function: Function) -> Function:
        """Override `OpAdapter`; raises RegistrationError if the arguments do not fit."""
        positional, keywords = self.tree.own_names()
        rules.check_signature(self.declaration, "vmap rule", function, ["info", "in_dims", *positional], keywords)
        return flat_vmap(self.tree, self.declaration, function)

    def by_name(self, values: Any) -> Any:
        """Override `OpAdapter`."""
        return by_flat_name(self.tree, values)

    def mirrored(self, found: Values, values: Values) -> dict[str, Any]:
        """Override `OpAdapter`."""
        containers = (node for node in self.nodes if node.name not in values)
        return {**found, **{node.name: node.mirror(found.get, values.__getitem__) for node in containers}}


def adapter_of(declaration: Declaration) -> OpAdapter:
    """Return the adapter of an op."""
    return OpAdapter(declaration) if declaration.tree is None else ContainerAdapter(declaration)
