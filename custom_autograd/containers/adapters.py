"""What the author of an op registers, who thinks in containers -> what is registered for its flat op."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from torch import Tensor

from custom_autograd.containers.argument_tree import ArgumentTree
from custom_autograd.containers.fields import Node, Plain
from custom_autograd.containers.named_fields import describe
from custom_autograd.containers.op_adapter import Function
from custom_autograd.containers.treespecs import MisfitError
from custom_autograd.core.errors import CustomAutogradError, GradientError, KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import explicit_none, quote, suggest
from custom_autograd.registration import rule_types, rules
from custom_autograd.registration.declaration import Declaration, kernel_of_op
from custom_autograd.registration.rules import check_signature
from custom_autograd.schema.named_tuples import in_order_of
from custom_autograd.schema.schema import Schema

E = TypeVar("E", bound=CustomAutogradError)


def flat_function(tree: ArgumentTree, function: Function, op: str, title: str = "kernel") -> Function:
    """Return what is called like the op itself (a kernel, a fake, a reference), as its flat op is called."""
    names = list(tree.flat.annotations)[:-1]

    @functools.wraps(function)
    def flat(*args: Any, **kwargs: Any) -> Any:
        positional, keywords = tree.arguments({**dict(zip(names, args, strict=False)), **kwargs})
        result = function(*positional, **keywords)
        if tree.results is None:
            return result
        try:
            return tree.results.take(result)
        except MisfitError as error:
            raise_misfit(KernelError, op, f"the {title} {location_of(function)} returns another container", error)

    return _with_signature(flat, tree.flat.signature)


def flat_kernel_function(tree: ArgumentTree, schema: Schema, function: Function, op: str) -> Function:
    """Return a kernel on containers as its flat op is called; it records which of them the op writes to."""
    positional, _ = tree.ordered()
    written = {argument.name for argument in schema.mutated_arguments}
    names = [node.name for node in tree.inputs if not written.isdisjoint(node.flat())]
    return flat_function(tree, kernel_of_op(function, op, [node.name for node in positional], names), op)


def _with_signature(flat: Function, signature: inspect.Signature | None) -> Function:
    flat.__signature__ = signature  # type: ignore[attr-defined]  # what inspect.signature reads
    return flat


def raise_misfit(error: type[CustomAutogradError], op: str, problem: str, misfit: MisfitError) -> NoReturn:
    """Raise the error that says which field of a container does not fit."""
    facts = {"expected": misfit.expected, "found": misfit.found}
    raise error(op, f"{problem} for {misfit.path}", do=misfit.advice, **facts) from None


def check_call(tree: ArgumentTree, declaration: Declaration, title: str, function: Function) -> None:
    """Check that a function can be called with the op's arguments, as their author sees them."""
    check_signature(declaration, title, function, *tree.own_names())


def by_flat_name(tree: ArgumentTree, values: Any) -> Any:
    """Return values given for containers or their fields, by tensor; anything but a dict as it is."""
    if not isinstance(values, Mapping):
        return values
    return {flat: value for name, value in values.items() for flat in tree.flat_names(str(name))}


class ByName:
    """Binds the rules of one op by the names of its containers."""

    def __init__(self, tree: ArgumentTree, declaration: Declaration) -> None:
        self.tree = tree
        self.declaration = declaration
        self.schema = declaration.schema
        self.differentiable = {argument.name for argument in self.schema.differentiable_arguments}
        self.results = {result.name for result in self.schema.differentiable_results}
        self.inputs = {node.name: node for node in tree.inputs}
        outputs = () if tree.results is None else tree.results.nodes
        self.outputs: dict[str, Node] = {node.name: node for node in outputs}
        self.structures = tree.structures()

    def gradient_rule(self, title: str, function: Function, inputs: tuple[str, ...] = ()) -> Function:
        """Return a rule that returns gradients by input."""
        names = self._names(title, function, with_grads=True, with_tangents=False)
        answered = [self.inputs[name] for name in inputs] if inputs else self._differentiable_inputs()
        return self._flat_rule(title, function, names, answered)

    def jvp_rule(self, function: Function) -> Function:
        """Return a rule that returns tangents by output."""
        names = self._names("jvp", function, with_grads=False, with_tangents=True)
        return self._flat_rule("jvp", function, names, self._outputs(), self._outputs(is_hidden=True))

    def flat_inputs(self, inputs: Sequence[str]) -> tuple[str, ...]:
        """Return the flat inputs of some, of which a gradient may be asked."""
        return tuple(flat for name in inputs for flat in self.inputs[name].flat() if flat in self.differentiable)

    def differentiable_names(self) -> tuple[str, ...]:
        """Return the inputs that hold a tensor which may carry a gradient."""
        return tuple(node.name for node in self._differentiable_inputs())

    def _differentiable_inputs(self) -> list[Node]:
        return [node for node in self.tree.inputs if self.differentiable & set(node.flat())]

    def _outputs(self, *, is_hidden: bool = False) -> list[Node]:
        """Return the differentiable results: containers where there are any, else what the schema says."""
        names = self.schema.hidden_results if is_hidden else self.schema.visible_results
        from_schema = map(_single, names)
        found: dict[str, Node] = {}
        for single in from_schema:
            node = self._owner(single.name) or single
            found[node.name] = node
        return list(found.values())

    def _owner(self, flat: str) -> Node | None:
        nodes = (*self.outputs.values(), *self.inputs.values())
        return next((node for node in nodes if flat in node.flat()), None)

    def _names(self, title: str, function: Function, *, with_grads: bool, with_tangents: bool) -> tuple[str, ...]:
        values = {name: f"argument '{name}'" for name in self.inputs}
        values |= {name: f"output '{name}'" for name in self.outputs}
        special: dict[str, str] = {}
        visible = self._outputs()
        if with_grads and len(visible) == 1:
            special["grad"] = f"the incoming gradient of '{visible[0].name}'"
        if with_grads:
            special |= {f"grad_{node.name}": f"the incoming gradient of '{node.name}'" for node in visible}
        if with_tangents:
            nodes = self._differentiable_inputs()
            special |= {f"tangent_{node.name}": f"the tangent of '{node.name}'" for node in nodes}
        flat = rule_types.special_names(self.schema, with_grads=with_grads, with_tangents=with_tangents)
        values |= rule_types.value_names(self.schema)
        return rules.bind_names(self.declaration, title, function, values, {**special, **flat})

    def _flat_rule(
        self, title: str, function: Function, names: tuple[str, ...], answered: list[Node], hidden: Sequence[Node] = ()
    ) -> Function:
        """Return the rule under flat names: what it names is put together, and what it returns is taken apart.

        What is hidden may stand in a dict by name.
        """
        parameters = inspect.signature(function).parameters
        optional = [name for name in names if name.startswith("grad") and parameters[name].default is None]
        makers = {name: self._maker(name) for name in names}
        needed = [one for name in names if name not in optional for one in makers[name][0]]
        spare = [one for name in optional for one in makers[name][0]]
        flat_names = list(dict.fromkeys([*needed, *self.structures, *spare]))

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

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        fixed = {*needed, *self.structures}
        defaults = {n: inspect.Parameter.empty if n in fixed else None for n in flat_names}
        flat_parameters = [inspect.Parameter(n, kind, default=default) for n, default in defaults.items()]
        return _with_signature(flat, inspect.Signature(flat_parameters))

    def _maker(self, name: str) -> tuple[list[str], Callable[[Mapping[str, Any]], Any]]:
        """Return the flat names behind a name of a rule, and a function that makes its value from theirs."""
        node = self._named(name)
        if node is not None:
            return list(node.flat()), lambda given: node.give(given.__getitem__)
        if name in ("needs", "meta"):
            blank = False if name == "needs" else None
            return [name], lambda given: self._by_attribute(given[name], given, blank)
        for prefix, valid in (("grad_", self.results), ("tangent_", self.differentiable)):
            node = self._named(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if node is not None:
                return self._mirrored(node, prefix, valid)
        if name == "grad" and name not in self.schema.argument_names:
            node = self._outputs()[0]
            if len(node.flat()) > 1 or node.name in self.outputs:
                return self._mirrored(node, "grad_", self.results)
        return [name], lambda given: given[name]

    def _named(self, name: str) -> Node | None:
        return self.outputs.get(name) or self.inputs.get(name)

    def _mirrored(
        self, node: Node, prefix: str, valid: set[str]
    ) -> tuple[list[str], Callable[[Mapping[str, Any]], Any]]:
        flat = [f"{prefix}{name}" for name in node.flat() if name in valid]
        return flat, lambda given: node.mirror(lambda one: given.get(f"{prefix}{one}"), given.__getitem__)

    def _by_attribute(self, named: Any, given: Mapping[str, Any], blank: Any) -> Any:
        """Return `needs` or `meta` with an attribute per container, next to those per flat tensor."""
        known = dict(vars(named))
        nodes = [node for node in (*self.inputs.values(), *self.outputs.values()) if not isinstance(node, Plain)]
        get = functools.partial(_get, vars(named), blank)
        known |= {node.name: node.mirror(get, given.__getitem__, blank) for node in nodes}
        return type(named)(known)

    def _collect(
        self, answered: list[Node], result: Any, given: Mapping[str, Any], hidden: Sequence[Node]
    ) -> dict[str, Any]:
        """Return what a rule returned, by flat name."""
        everything = [*answered, *hidden]
        if isinstance(result, Mapping) and not (set(result) - set(self._known(everything))):
            pairs = [(self._find(everything, name), value) for name, value in result.items()]
        elif self._is_whole(answered, result):
            assert self.tree.results is not None
            pairs = self.tree.results.pairs(result)
        elif len(answered) == 1 and result is not None:
            pairs = [(answered[0], result)]
        elif isinstance(result, (tuple, list)) and len(result) == len(answered):
            result = in_order_of([node.name for node in answered], result, _refuse, prefixes=("grad_", "tangent_"))
            pairs = list(zip(answered, result, strict=True))
        else:
            names = quote(node.name for node in answered)
            raise MisfitError(
                "the result", f"a dict or a tuple for {names}", describe(result), self._advice(answered, result)
            )
        found: dict[str, Any] = {}
        for node, value in pairs:
            collected = node.collect(value, given.__getitem__)
            twice = [name for name in collected if name in found]
            if twice:
                raise MisfitError("the result", "one gradient for each place", f"two for '{twice[0]}'")
            found.update(collected)
        return {name: value for name, value in found.items() if self._is_answered(name) or isinstance(value, Tensor)}

    def _is_whole(self, answered: list[Node], result: Any) -> bool:
        """Return True if a jvp rule returned the container that a kernel returns."""
        results = self.tree.results
        if results is None or results.record is None or isinstance(result, Mapping):
            return False
        return answered == list(self.outputs.values()) and results.record.read(result) is not None

    def _is_answered(self, name: str) -> bool:
        return name in self.differentiable or name in self.results

    def _known(self, answered: list[Node]) -> list[str]:
        return [name for node in answered for name in (node.name, *node.flat())]

    def _advice(self, answered: list[Node], result: Any) -> str | None:
        if result is None:
            return f"is a return missing? if the result is zero, {explicit_none([node.name for node in answered])}"
        unknown = [name for name in result if name not in self._known(answered)] if isinstance(result, Mapping) else []
        if not unknown:
            return None
        name = str(unknown[0])
        return suggest(name, self._known(answered)) or f"leave {name!r} out: it carries none"

    def _find(self, answered: list[Node], name: str) -> Node:
        return next((node for node in answered if node.name == name), None) or _single(name)


def _get(values: Mapping[str, Any], blank: Any, name: str) -> Any:
    return values.get(name, blank)


def _single(name: str) -> Node:
    """Return a flat name as it is."""
    return Plain(name, name, None)


def _refuse(problem: str, *, expected: str, found: str, do: str) -> NoReturn:
    raise MisfitError("the result", expected, found, f"it {problem}: {do}")
