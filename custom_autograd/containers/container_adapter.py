"""Adapts the rules of an op with containers, as its author writes them by name or by position, to its flat op."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from custom_autograd.containers.adapters import (
    ByName,
    by_flat_name,
    check_call,
    flat_function,
    flat_kernel_function,
    raise_misfit,
)
from custom_autograd.containers.argument_tree import ArgumentTree
from custom_autograd.containers.fields import Free, Plain, all_nodes
from custom_autograd.containers.op_adapter import Function, OpAdapter, Values, label_each
from custom_autograd.containers.treespecs import MisfitError
from custom_autograd.core.errors import GradientError, KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.rules import check_signature
from custom_autograd.registration.shorter_rules import Parameters
from custom_autograd.schema.schema import Schema

TEXTS = "custom_autograd_structures"
"""Where ctx keeps the texts of a call's structures."""


def flat_vmap(tree: ArgumentTree, declaration: Declaration, function: Function) -> Function:
    """Return a vmap rule: `in_dims`, arguments, output and `out_dims` are containers where the op's are."""
    positional, keywords = tree.ordered()
    has_keyword_tensors = any(a.is_keyword_only and a.holds_tensors for a in declaration.schema.arguments)
    names = declaration.schema.argument_names

    @functools.wraps(function)
    def flat(info: Any, in_dims: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        dims = dict(zip(names, in_dims, strict=False))
        nodes = [*positional, *(keywords if has_keyword_tensors else [])]
        own_dims = tuple(node.mirror(dims.get, given.__getitem__) for node in nodes)
        values, by_name = tree.arguments(given)
        result = function(info, own_dims, *values, **by_name)
        if tree.results is None or not isinstance(result, tuple) or len(result) != 2:
            return result
        try:
            return tree.results.take(result[0]), tree.results.take_dims(result[1])
        except MisfitError as error:
            problem = f"the vmap rule {location_of(function)} returns another container"
            raise_misfit(KernelError, str(declaration.name), problem, error)

    return _plain_signature(flat, ["info", "in_dims", *names], declaration.schema)


def _plain_signature(flat: Function, names: list[str], schema: Schema) -> Function:
    keywords = {argument.name for argument in schema.arguments if argument.is_keyword_only}
    either, only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, only if name in keywords else either) for name in names]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect reads
    return flat


def _own_signature(function: Function) -> Function:
    """Return the function, which inspect takes for what it is rather than for what it wraps."""
    function.__signature__ = inspect.signature(function, follow_wrapped=False)  # type: ignore[attr-defined]
    return function


class Ctx:
    """The ctx of a rule, on which `needs_input_grad` has the containers of the op; all else is the real one's."""

    def __init__(self, ctx: Any, needs_input_grad: tuple[Any, ...]) -> None:
        vars(self).update(custom_autograd_ctx=ctx, needs_input_grad=needs_input_grad)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["custom_autograd_ctx"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["custom_autograd_ctx"], name, value)


class TorchStyle:
    """A backward and a setup_context of an op with containers, for its flat op."""

    def __init__(
        self, tree: ArgumentTree, declaration: Declaration, backward: Function, setup: Function | None
    ) -> None:
        self.tree = tree
        self.declaration = declaration
        schema = declaration.schema
        positional, keywords = tree.ordered()
        tensors = {argument.name for argument in schema.tensor_arguments}
        self.answered = [*positional, *(node for node in keywords if tensors & set(node.flat()))]
        keyword_only = {argument.name for argument in schema.arguments if argument.is_keyword_only}
        self.flat_answered = [n for n in schema.argument_names if n not in keyword_only or n in tensors]
        has_default = {name for name, one in tree.signature.parameters.items() if one.default is not one.empty}
        fixed = {node.name for node in positional if not tensors & set(node.flat())}
        self.optional = has_default | fixed | {node.name for node in keywords}
        self.structures = tree.structures()
        self.user_backward, self.user_setup = backward, setup
        self.backward = _own_signature(functools.wraps(backward)(lambda ctx, *grads: self._run_backward(ctx, grads)))
        self.setup = _own_signature(functools.wraps(setup or backward)(self._setup_function()))

    def _setup_function(self) -> Function:
        def setup(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Mapping[str, Any] | None = None) -> None:
            self._run_setup(ctx, inputs, output, keyword_only_inputs or {})

        return setup

    def _run_setup(self, ctx: Any, inputs: Any, output: Any, keywords: Mapping[str, Any]) -> None:
        given = {**dict(zip(self.declaration.schema.argument_names, inputs, strict=False)), **keywords}
        texts = {name: given[name] for name in self.structures}
        if texts:
            setattr(ctx, TEXTS, tuple(texts.items()))
        if self.user_setup is None:
            return
        positional, by_name = self.tree.arguments(given)
        names = inspect.signature(self.user_setup).parameters
        seen = Ctx(ctx, self._needs(ctx, texts))
        arguments: dict[str, Any] = {"inputs": tuple(positional), "output": self._output(output)}
        if "keyword_only_inputs" in names:
            arguments["keyword_only_inputs"] = by_name
        if {"ctx", "inputs", "output"} <= set(names):
            self.user_setup(ctx=seen, **arguments)
        else:
            self.user_setup(seen, *arguments.values())

    def _output(self, output: Any) -> Any:
        results = self.tree.results
        if results is None:
            return output
        names = results.flat_names()
        return results.put(dict(zip(names, output if len(names) > 1 else (output,), strict=True)))

    def _needs(self, ctx: Any, texts: Mapping[str, str]) -> tuple[Any, ...]:
        needs = dict(zip(self.flat_answered, ctx.needs_input_grad, strict=False))
        return tuple(node.mirror(needs.get, texts.__getitem__) for node in self.answered)

    def _run_backward(self, ctx: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        texts = dict(getattr(ctx, TEXTS, ()))
        incoming = grads
        if self.tree.results is not None:
            by_name = dict(zip(self.tree.results.flat_names(), grads, strict=True))
            incoming = tuple(node.mirror(by_name.get, texts.__getitem__) for node in self.tree.results.nodes)
        rows = self._rows(self.user_backward(Ctx(ctx, self._needs(ctx, texts)), *incoming), ctx.needs_input_grad)
        found: dict[str, Any] = {}
        try:
            for node, row in zip(self.answered, rows, strict=True):
                found.update(node.collect(row, texts.__getitem__))
        except MisfitError as error:
            problem = f"the backward {location_of(self.user_backward)} returns another container"
            raise_misfit(GradientError, str(self.declaration.name), problem, error)
        return tuple(found.get(name) for name in self.flat_answered)

    def _rows(self, result: Any, needs: tuple[Any, ...]) -> list[Any]:
        """Return what a backward returned as a list, with None for what it may leave out at the end."""
        is_row = isinstance(result, tuple) and (len(self.answered) != 1 or len(result) == 1)
        rows = list(result) if is_row else [result]
        while len(rows) > len(self.answered) and rows[-1] is None:
            rows.pop()
        needed = {name for name, need in zip(self.flat_answered, needs, strict=False) if _is_any(need)}
        missing = self.answered[len(rows) :]
        is_short = any(node.name not in self.optional or needed & set(node.flat()) for node in missing)
        if is_short or len(rows) > len(self.answered):
            raise self._wrong_count(len(rows))
        return rows + [None] * len(missing)

    def _wrong_count(self, count: int) -> GradientError:
        return GradientError(
            str(self.declaration.name),
            "the backward returns the wrong number of gradients",
            expected=f"{len(self.answered)}: {quote(node.name for node in self.answered)}",
            found=str(count),
            rule=f"{location_of(self.user_backward)}, backward",
            declared=self.declaration.location,
            do="return one per positional argument and keyword-only tensor, None for what is not a tensor",
        )


def _is_any(need: Any) -> bool:
    return any(need) if isinstance(need, (list, tuple)) else bool(need)


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
