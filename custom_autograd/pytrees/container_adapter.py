"""Adapt the rules of an op with containers, as its author writes them, to the flat op of the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from custom_autograd.pytrees.adapters import ByName, by_flat_name, check_call, flat_function, flat_kernel_function
from custom_autograd.pytrees.argument_tree import ArgumentTree
from custom_autograd.pytrees.fields import Free, Plain, all_nodes
from custom_autograd.pytrees.op_adapter import Function, OpAdapter, Values, label_each
from custom_autograd.pytrees.positional_rules import TorchStyle, flat_vmap
from custom_autograd.registration.called_by_position import check_signature
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.shorter_rules import Parameters

T = TypeVar("T")


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
        check_signature(self.declaration, "vmap rule", function, ["info", "in_dims", *positional], keywords)
        return flat_vmap(self.tree, self.declaration, function)

    def by_name(self, values: Any) -> Any:
        """Override `OpAdapter`."""
        return by_flat_name(self.tree, values)

    def labels(self, name: str, values: Values) -> list[str]:
        """Override `OpAdapter`: by the path that its author knows."""
        node = next((one for one in self.nodes if isinstance(one, (Plain, Free)) and one.name == name), None)
        if isinstance(node, Free):
            return node.paths(values.__getitem__)
        return label_each(name if node is None else node.path, values[name])

    def mirrored(self, found: Values, values: Values) -> dict[str, Any]:
        """Override `OpAdapter`."""
        containers = (node for node in self.nodes if node.name not in values)
        return {**found, **{node.name: node.mirror(found.get, values.__getitem__) for node in containers}}
