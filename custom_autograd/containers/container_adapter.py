"""Adapts the rules of an op with containers, as its author writes them by name or by position, to its flat op."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from torch import Tensor

from custom_autograd.containers.argument_tree import ArgumentTree, raise_misfit, with_signature
from custom_autograd.containers.drop_in_adapter import TorchStyle
from custom_autograd.containers.fields import Free, Node, Plain, all_nodes
from custom_autograd.containers.named_fields import describe
from custom_autograd.containers.op_adapter import Function, OpAdapter, Values, label_each
from custom_autograd.containers.treespecs import MisfitError
from custom_autograd.core.errors import GradientError, KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import explicit_none, quote, suggest
from custom_autograd.core.signatures import read_signature
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.rule_types import special_names, value_names
from custom_autograd.registration.rules import Parameters, bind_names, check_signature
from custom_autograd.schema.named_tuples import in_order_of

T = TypeVar("T")
Maker = tuple[list[str], Callable[[Values], Any]]
"""The flat names behind a name of a rule, and what makes its value from theirs (Any: of every type)."""


class ContainerAdapter(OpAdapter):
    """The adapter of an op with containers."""

    has_containers = True

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(declaration)
        assert isinstance(declaration.tree, ArgumentTree)
        self.tree = declaration.tree
        self.nodes = tuple(all_nodes(self.tree.inputs))
        self.inputs = {node.name: node for node in self.tree.inputs}
        self.outputs = {node.name: node for node in self.tree.outputs}
        self.differentiable = set(self.schema.differentiable_names)
        self.results = {result.name for result in self.schema.differentiable_results}

    def around(self, flat: T, wrap: Callable[[ArgumentTree, T], T]) -> T:
        """Override `OpAdapter`."""
        return wrap(self.tree, flat)

    def parameters(self) -> Parameters:
        """Override `OpAdapter`."""
        return self.tree.parameters()

    def output_names(self) -> tuple[str, ...]:
        """Override `OpAdapter`."""
        return tuple(self.outputs) or super().output_names()

    def differentiable_names(self) -> tuple[str, ...]:
        """Override `OpAdapter`."""
        return tuple(node.name for node in self._differentiable_inputs())

    def kernel(self, function: Function) -> Function:
        """Override `OpAdapter`; raises RegistrationError if the arguments do not fit."""
        self._check("kernel", function)
        return self.tree.flat_kernel(self.schema, function, str(self.declaration.name))

    def accepting(self, title: str, function: Function) -> Function:
        """Override `OpAdapter`."""
        self._check(title, function)
        return self.tree.flat_function(function, str(self.declaration.name), title)

    def _check(self, title: str, function: Function, before: Sequence[str] = ()) -> None:
        own = self.tree.parameters()
        check_signature(self.declaration, title, function, [*before, *own.positional], own.keywords)

    def gradient_rule(self, slot: str, function: Function, inputs: tuple[str, ...]) -> tuple[Function, tuple[str, ...]]:
        """Override `OpAdapter`; raises RegistrationError if a parameter names nothing."""
        answered = [self.inputs[name] for name in inputs] if inputs else self._differentiable_inputs()
        flat_inputs = [flat for name in inputs for flat in self.inputs[name].flat() if flat in self.differentiable]
        return self._flat_rule(slot, function, answered), tuple(flat_inputs)

    def jvp_rule(self, function: Function) -> Function:
        """Override `OpAdapter`; raises RegistrationError if a parameter names nothing."""
        visible, hidden = map(self._owners, (self.schema.visible_results, self.schema.hidden_results))
        return self._flat_rule("jvp", function, visible, hidden, is_jvp=True)

    def drop_in(self, backward: Function, setup_context: Function | None) -> tuple[Function, Function | None]:
        """Override `OpAdapter`."""
        flat = TorchStyle(self.tree, self.declaration, backward, setup_context)
        return flat.backward, flat.setup

    def vmap_rule(self, function: Function) -> Function:
        """Override `OpAdapter`; `in_dims`, arguments, output and `out_dims` are containers where the op's are.

        Raises:
            RegistrationError: the arguments do not fit.
        """
        tree, names = self.tree, self.schema.argument_names
        self._check("vmap rule", function, ["info", "in_dims"])
        has_keyword_tensors = any(a.is_keyword_only and a.holds_tensors for a in self.schema.arguments)
        nodes = tree.inputs if has_keyword_tensors else tree.positional

        @functools.wraps(function)
        def flat(info: Any, in_dims: Any, /, *args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            dims = dict(zip(names, in_dims, strict=False))
            own_dims = tuple(node.mirror(dims.get, given.__getitem__) for node in nodes)
            values, by_name = tree.arguments(given)
            result = function(info, own_dims, *values, **by_name)
            if tree.results is None or not isinstance(result, tuple) or len(result) != 2:
                return result
            try:
                return tree.results.take(result[0]), tree.results.take_dims(result[1])
            except MisfitError as error:
                problem = f"the vmap rule {location_of(function)} returns another container"
                raise_misfit(KernelError, str(self.declaration.name), problem, error)

        either, only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        flat_parameters = [inspect.Parameter(name, either) for name in ("info", "in_dims")]
        flat_parameters += [
            inspect.Parameter(a.name, only if a.is_keyword_only else either) for a in self.schema.arguments
        ]
        return with_signature(flat, inspect.Signature(flat_parameters))

    def by_name(self, values: Any) -> Any:
        """Override `OpAdapter`."""
        if not isinstance(values, Mapping):
            return values
        return {flat: value for name, value in values.items() for flat in self.tree.flat_names(str(name))}

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

    def _differentiable_inputs(self) -> list[Node]:
        """Return the inputs that hold a tensor which may carry a gradient."""
        return [node for node in self.tree.inputs if self.differentiable & set(node.flat())]

    def _owners(self, results: Iterable[str]) -> list[Node]:
        """Return the output or the written input that each flat result belongs to, once; else the result itself."""
        nodes = (*self.outputs.values(), *self.inputs.values())
        found = [next((node for node in nodes if name in node.flat()), _single(name)) for name in results]
        return list({node.name: node for node in found}.values())

    def _names(self, title: str, function: Function, *, is_jvp: bool) -> tuple[str, ...]:
        """Return the names that a rule is called with."""
        values = {name: f"argument '{name}'" for name in self.inputs}
        values |= {name: f"output '{name}'" for name in self.outputs}
        special: dict[str, str] = {}
        if is_jvp:
            special = {f"tangent_{name}": f"the tangent of '{name}'" for name in self.differentiable_names()}
        else:
            visible = [node.name for node in self._owners(self.schema.visible_results)]
            if len(visible) == 1:
                special["grad"] = f"the incoming gradient of '{visible[0]}'"
            special |= {f"grad_{name}": f"the incoming gradient of '{name}'" for name in visible}
        special |= special_names(self.schema, with_grads=not is_jvp, with_tangents=is_jvp)
        return bind_names(self.declaration, title, function, values | value_names(self.schema), special)

    def _flat_rule(
        self, title: str, function: Function, answered: list[Node], hidden: Sequence[Node] = (), *, is_jvp: bool = False
    ) -> Function:
        """Return the rule under flat names: what it names is put together, and what it returns is taken apart.

        What is hidden may stand in a dict by name.
        """
        names = self._names(title, function, is_jvp=is_jvp)
        parameters = read_signature(function).parameters
        optional = [name for name in names if name.startswith("grad") and parameters[name].default is None]
        makers = {name: self._maker(name) for name in names}
        fixed = [one for name in names if name not in optional for one in makers[name][0]] + self.tree.structures()
        spare = [one for name in optional for one in makers[name][0]]
        flat_names = list(dict.fromkeys([*fixed, *spare]))

        @functools.wraps(function)
        def flat(*args: Any, **kwargs: Any) -> dict[str, Any]:
            given = {**dict(zip(flat_names, args, strict=False)), **kwargs}
            absent = [name for name in optional if all(given[one] is None for one in makers[name][0])]
            made = {name: None if name in absent else make(given) for name, (_, make) in makers.items()}
            result = function(**made)
            try:
                return self._collect(answered, result, given, hidden)
            except MisfitError as error:
                problem = f"the {title} rule {location_of(function)} returns another container"
                raise_misfit(GradientError, str(self.declaration.name), problem, error)

        kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        flat_parameters = [inspect.Parameter(n, kind, default=empty if n in fixed else None) for n in flat_names]
        return with_signature(flat, inspect.Signature(flat_parameters))

    def _maker(self, name: str) -> Maker:
        node = self._named(name)
        if node is not None:
            return list(node.flat()), lambda given: node.give(given.__getitem__)
        if name in ("needs", "meta"):
            return [name], lambda given: self._by_attribute(given[name], given, False if name == "needs" else None)
        for prefix, valid in (("grad_", self.results), ("tangent_", self.differentiable)):
            node = self._named(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if node is not None:
                return self._mirrored(node, prefix, valid)
        if name == "grad" and name not in self.schema.argument_names:
            (node,) = self._owners(self.schema.visible_results)
            if len(node.flat()) > 1 or node.name in self.outputs:
                return self._mirrored(node, "grad_", self.results)
        return [name], lambda given: given[name]

    def _named(self, name: str) -> Node | None:
        return self.outputs.get(name) or self.inputs.get(name)

    def _mirrored(self, node: Node, prefix: str, valid: set[str]) -> Maker:
        flat = [f"{prefix}{name}" for name in node.flat() if name in valid]
        return flat, lambda given: node.mirror(lambda one: given.get(f"{prefix}{one}"), given.__getitem__)

    def _by_attribute(self, named: Any, given: Values, blank: Any) -> Any:
        """Return `needs` or `meta` with an attribute per container, next to those per flat tensor."""
        known = dict(vars(named))
        containers = [node for node in (*self.tree.inputs, *self.tree.outputs) if not isinstance(node, Plain)]
        for node in containers:
            known[node.name] = node.mirror(lambda name: vars(named).get(name, blank), given.__getitem__, blank)
        return type(named)(known)

    def _collect(self, answered: list[Node], result: Any, given: Values, hidden: Sequence[Node]) -> dict[str, Any]:
        """Return what a rule returned, by flat name."""
        found: dict[str, Any] = {}
        for node, value in self._pairs(answered, result, [*answered, *hidden]):
            collected = _collect_from(node, value, given.__getitem__, is_alone=len(answered) == 1 and value is result)
            twice = [name for name in collected if name in found]
            if twice:
                raise MisfitError("the result", "one gradient for each place", f"two for '{twice[0]}'")
            found.update(collected)
        named = self.differentiable | self.results
        return {name: value for name, value in found.items() if name in named or isinstance(value, Tensor)}

    def _pairs(self, answered: list[Node], result: Any, everything: list[Node]) -> Iterable[tuple[Node, Any]]:
        """Return each node that a rule returned something for, with what that is."""
        if isinstance(result, Mapping) and set(result) <= set(_known(everything)):
            by_name = {node.name: node for node in everything}
            return [(by_name.get(name) or _single(name), value) for name, value in result.items()]
        results = self.tree.results
        pairs = results.find_pairs(result) if results is not None and answered == list(results.nodes) else None
        if pairs is not None:
            return pairs  # a jvp rule returned the container that a kernel returns
        if len(answered) == 1 and result is not None:
            return [(answered[0], result)]
        names = [node.name for node in answered]
        if isinstance(result, (tuple, list)) and len(result) == len(answered):
            return zip(answered, in_order_of(names, result, _refuse, prefixes=("grad_", "tangent_")), strict=True)
        expected = f"a dict or a tuple for {quote(names)}"
        raise MisfitError("the result", expected, describe(result), _advice(answered, result))


def _collect_from(node: Node, value: Any, get: Callable[[str], Any], *, is_alone: bool) -> Values:
    """Return what is returned for a node, by flat name: that for the only node may be in a tuple of one."""
    if not is_alone or type(value) is not tuple or len(value) != 1:
        return node.collect(value, get)
    (inner,) = value
    if isinstance(node, Plain):
        return node.collect(inner, get)
    first, second = (value, inner) if isinstance(inner, Tensor) or callable(inner) else (inner, value)
    with contextlib.suppress(MisfitError):
        return node.collect(first, get)
    return node.collect(second, get)


def _single(name: str) -> Node:
    """Return a flat name as it is."""
    return Plain(name, name, None)


def _known(nodes: list[Node]) -> list[str]:
    return [name for node in nodes for name in (node.name, *node.flat())]


def _advice(answered: list[Node], result: Any) -> str | None:
    if result is None:
        return f"is a return missing? if the result is zero, {explicit_none([node.name for node in answered])}"
    known = _known(answered)
    unknown = [str(name) for name in result if name not in known] if isinstance(result, Mapping) else []
    return (suggest(unknown[0], known) or f"leave {unknown[0]!r} out: it carries none") if unknown else None


def _refuse(problem: str, *, expected: str, found: str, do: str) -> NoReturn:
    raise MisfitError("the result", expected, found, f"it {problem}: {do}")
