"""A function whose arguments or results are containers -> its flat op, and the source of a call of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import GenericAlias
from typing import Any, NoReturn

from custom_autograd.containers.fields import Free, Node, Plain, Record, Results, all_nodes, check_hidden, results_of
from custom_autograd.containers.leaf_types import Kind, UnknownKindError, kind_of, letters
from custom_autograd.containers.named_fields import find_record
from custom_autograd.containers.treespecs import MisfitError
from custom_autograd.core.errors import CustomAutogradError, KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.declaration import kernel_of_op
from custom_autograd.registration.rules import Parameters
from custom_autograd.schema.annotations import DeclarationOptions, Refusal, Written, resolve
from custom_autograd.schema.schema import TENSOR_TYPES, Schema
from custom_autograd.schema.types import find_argument_type


@dataclass(frozen=True, slots=True)
class ArgumentTree:
    """The structure of one op.

    Attributes:
        signature: of the function, as its author wrote it.
        positional: its parameters that are given by position, in order; the last one may be `*name`.
        keywords: its keyword-only parameters.
        is_variadic: the last positional one is `*name`.
        results: its results, or None if the schema can say them itself.
        flat: signature and annotations of the flat op.
    """

    signature: inspect.Signature
    positional: tuple[Node, ...]
    keywords: tuple[Node, ...]
    is_variadic: bool
    results: Results | None
    flat: Written

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Return the parameters, in order."""
        return (*self.positional, *self.keywords)

    def parameters(self) -> Parameters:
        """Return the names of the parameters, and their defaults."""
        positional, keywords = ([node.name for node in nodes] for nodes in (self.positional, self.keywords))
        rows = self.signature.parameters.values()
        defaults = {row.name: row.default for row in rows if row.default is not row.empty}
        return Parameters(positional, keywords, defaults, self.is_variadic)

    @property
    def outputs(self) -> tuple[Node, ...]:
        """Return the outputs, if the schema cannot say them itself."""
        return () if self.results is None else self.results.nodes

    def structures(self) -> list[str]:
        """Return the flat names of the texts of the structures that vary."""
        return [node.text for node in all_nodes(self.inputs) if isinstance(node, Free)]

    def is_plain(self, position: int) -> bool:
        """Return True if the parameter at a position is not a container."""
        return isinstance(self.inputs[position], Plain)

    def arguments(self, flat: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return what the author's own function is called with, from values by flat name."""
        positional = [node.give(flat.__getitem__) for node in self.positional]
        if self.is_variadic:
            positional += positional.pop()
        return positional, {node.name: node.give(flat.__getitem__) for node in self.keywords}

    def flat_call(self, /, *args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return what the flat op is called with, defaults filled in."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        taken = {node.name: node.take(bound.arguments[node.name]) for node in self.inputs}
        keywords = [zip(node.flat(), taken[node.name], strict=True) for node in self.keywords]
        positional = [one for node in self.positional for one in taken[node.name]]
        return positional, {name: one for row in keywords for name, one in row}

    def flat_function(self, function: Callable[..., Any], op: str, title: str = "kernel") -> Callable[..., Any]:
        """Return what is called like the op itself (a kernel, a fake, a reference), as its flat op is called."""
        names = list(self.flat.annotations)[:-1]

        @functools.wraps(function)
        def flat(*args: Any, **kwargs: Any) -> Any:
            positional, keywords = self.arguments({**dict(zip(names, args, strict=False)), **kwargs})
            result = function(*positional, **keywords)
            if self.results is None:
                return result
            try:
                return self.results.take(result)
            except MisfitError as error:
                problem = f"the {title} {location_of(function)} returns another container"
                raise_misfit(KernelError, op, problem, error)

        return with_signature(flat, self.flat.signature)

    def flat_kernel(self, schema: Schema, function: Callable[..., Any], op: str) -> Callable[..., Any]:
        """Return a kernel on containers as its flat op is called; it records which of them the op writes to."""
        mutated = {argument.name for argument in schema.mutated_arguments}
        written = [node.name for node in self.inputs if not mutated.isdisjoint(node.flat())]
        return self.flat_function(kernel_of_op(function, op, self.parameters().positional, written), op)

    def outside(self, flat: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the flat op in the signature that its author declared."""

        def call(*args: Any, **kwargs: Any) -> Any:
            positional, keywords = self.flat_call(*args, **kwargs)
            return flat(*positional, **keywords)

        return call

    def flat_names(self, name: str) -> tuple[str, ...]:
        """Return the flat tensors behind a name or a path; the name itself if there are none."""
        for node in all_nodes((*self.inputs, *self.outputs)):
            if name in (node.name, node.path):
                found = tuple(flat for flat, annotation in node.flat().items() if _holds_tensors(annotation))
                return found or (node.name,)
        return (name,)


def with_signature(flat: Callable[..., Any], signature: inspect.Signature | None) -> Callable[..., Any]:
    """Return a function with what `inspect.signature` is to say of it."""
    flat.__signature__ = signature  # type: ignore[attr-defined]
    return flat


def raise_misfit(error: type[CustomAutogradError], op: str, problem: str, misfit: MisfitError) -> NoReturn:
    """Raise the error that says which field of a container does not fit."""
    facts = {"expected": misfit.expected, "found": misfit.found}
    raise error(op, f"{problem} for {misfit.path}", do=misfit.advice, **facts) from None


def _holds_tensors(annotation: Any) -> bool:
    found = find_argument_type(annotation)
    return found is not None and found.spelling in TENSOR_TYPES


def find_argument_tree(
    types: dict[str, Any], signature: inspect.Signature, options: DeclarationOptions, refuse: Refusal
) -> ArgumentTree | None:
    """Return the structure of a function's arguments and results, or None if there is none."""
    rows = signature.parameters.values()
    inputs = tuple(_input(parameter, types, refuse) for parameter in rows)
    results = results_of(types.get("return"), options, refuse)
    if results is None and all(isinstance(node, Plain) for node in inputs):
        return None
    _check_distinct(inputs, refuse)
    check_hidden(results, options, refuse)
    is_variadic = any(row.kind is row.VAR_POSITIONAL for row in rows)
    count = sum(row.kind is not row.KEYWORD_ONLY for row in rows)
    positional, keywords = inputs[:count], inputs[count:]
    returned = types.get("return", inspect.Signature.empty) if results is None else results.flat_annotation()
    flat = _flattened(positional, keywords, returned)
    return ArgumentTree(signature, positional, keywords, is_variadic, results, flat)


def _input(parameter: inspect.Parameter, types: dict[str, Any], refuse: Refusal) -> Node:
    name = parameter.name
    if name not in types:
        return Plain(name, name, parameter.empty)
    annotation = types[name]
    if parameter.kind is parameter.VAR_POSITIONAL:
        several: Any = GenericAlias(list, (annotation,))
        annotation = several if find_argument_type(several) else GenericAlias(tuple, (annotation, ...))
    return _node(name, name, annotation, (), refuse)


def _node(name: str, path: str, annotation: Any, above: tuple[type, ...], refuse: Refusal) -> Node:
    annotation = resolve(annotation)
    if find_argument_type(annotation) is not None:
        return Plain(name, path, annotation, None if path == name else _kind(annotation))
    record = find_record(annotation)
    if (
        record is not None
        and record.cls not in above
        and all(key.isidentifier() or key.isdigit() for key in record.keys)
    ):
        inside = (*above, record.cls) if record.style in ("fields", "dataclass") else above
        fields = [
            _node(f"{name}_{key}", path + record.path(index), one, inside, refuse)
            for index, (key, one) in enumerate(zip(record.keys, record.annotations, strict=True))
        ]
        return Record(name, path, record, tuple(fields))
    if annotation in (Any, object):
        return Plain(name, path, annotation)
    kind = _kind(annotation)
    if kind is not None:
        return Free(name, path, kind, frozenset(letters(kind)))
    if not above and path == name:
        return Plain(name, path, annotation)  # refused where the schema is inferred
    raise refuse(
        f"'{path}' has an annotation that is not supported",
        expected="tensors, numbers, strings, dtypes, Enums, and containers of those",
        found=inspect.formatannotation(annotation),
        do="change the annotation, or leave it out of the container",
    )


def _kind(annotation: Any) -> Kind | None:
    """Return the kind of an annotation, or None if there is none for it."""
    try:
        return kind_of(annotation)
    except UnknownKindError:
        return None


def _flattened(positional: Iterable[Node], keywords: Iterable[Node], returned: Any) -> Written:
    """Return what the flat op is declared with; it has no defaults, which the call above it fills in."""
    kinds: list[tuple[Iterable[Node], Any]] = [  # Any: inspect gives the type of its kinds no public name
        (positional, inspect.Parameter.POSITIONAL_OR_KEYWORD),
        (keywords, inspect.Parameter.KEYWORD_ONLY),
    ]
    rows = [(flat, kind) for nodes, kind in kinds for node in nodes for flat in node.flat().items()]
    parameters = [inspect.Parameter(name, kind, annotation=annotation) for (name, annotation), kind in rows]
    annotations = {name: resolve(annotation) for (name, annotation), _ in rows}
    signature = inspect.Signature(parameters, return_annotation=returned)
    return Written(signature, {**annotations, "return": resolve(returned)})


def _check_distinct(inputs: tuple[Node, ...], refuse: Refusal) -> None:
    owners: dict[str, str] = {}
    for node in all_nodes(inputs):
        for name in () if isinstance(node, Record) else node.flat():
            other = owners.setdefault(name, node.path)
            if other != node.path:
                raise refuse(
                    f"'{node.path}' and '{other}' both travel under the name '{name}'",
                    expected="one name for each tensor: of a container, its own and that of the place",
                    do=f"rename '{node.path}' or '{other}'",
                )


def flat_options(options: DeclarationOptions, tree: ArgumentTree) -> DeclarationOptions:
    """Return the declaration options, said of the flat op."""
    mutates = options.mutates
    if not isinstance(mutates, str):
        mutates = tuple(flat for name in mutates for flat in tree.flat_names(name))
    return replace(
        options,
        mutates=mutates,
        outputs=options.outputs if tree.results is None else tree.results.flat_names(),
        hidden=tuple(flat for name in options.hidden for flat in tree.flat_names(name)),
        non_differentiable=tuple(flat for name in options.non_differentiable for flat in tree.flat_names(name)),
    )


def _parameters(signature: inspect.Signature, first: str, absent: Collection[str]) -> str:
    """Return source of a parameter list with another first parameter; a default is written `$default$<name>`."""
    rows = signature.parameters.values()

    def spelled(kind: Any) -> list[str]:
        found = [row for row in rows if row.kind is kind]
        defaults = {row.name: "$absent" if row.name in absent else f"$default${row.name}" for row in found}
        return [row.name + ("" if row.default is row.empty else f"={defaults[row.name]}") for row in found]

    only = [*([first] if first else []), *spelled(inspect.Parameter.POSITIONAL_ONLY)]
    rest = spelled(inspect.Parameter.VAR_POSITIONAL) or ["$more"]
    parts = [*only, "/"] if only else []
    parts += [*spelled(inspect.Parameter.POSITIONAL_OR_KEYWORD), f"*{rest[0]}"]
    return ", ".join([*parts, *spelled(inspect.Parameter.KEYWORD_ONLY)])


def lines(tree: ArgumentTree, name: str, head: str, first: str, in_body: Mapping[str, str]) -> list[str]:
    """Return the source of the call of one op, line by line, with those defaults in its body."""
    nodes = [node for node in tree.inputs if not isinstance(node, Plain)]
    taken = [f"        {', '.join(node.flat())}, = $take${node.name}({node.name})" for node in nodes]
    passed = [*([first] if first else []), *(flat for node in tree.positional for flat in node.flat())]
    passed += [f"{flat}={flat}" for node in tree.keywords for flat in node.flat()]
    body = [
        f"def {head}({_parameters(tree.signature, first, in_body)}):",
        f'    """What {name}(...) runs: {name} itself knows no containers."""',
    ]
    if not tree.is_variadic:
        body += ["    if $more:", "        $refuse_more($more)"]
    for argument, default in in_body.items():
        body += [f"    if {argument} is $absent:", f"        {argument} = {default}"]
    if taken:
        body += ["    try:", *taken, "    except $MisfitError as $error:", "        $refuse($error)"]
    call = f"$flat({', '.join(passed)})"
    if tree.results is None:
        return [*body, f"    return {call}"]
    count = sum(len(node.flat()) for node in tree.results.visible)
    each = f"[{', '.join(f'$results[{at}]' for at in range(count))}]"  # by index: what torch.fx traces has no length
    return [*body, f"    $results = {call}", f"    return $give({each if count > 1 else '$results'})"]


def refusal(name: str, location: str, error: MisfitError) -> KernelError:
    """Return the error that says which argument, or which field of one, is not what was declared."""
    path = error.path if "'" in error.path else f"'{error.path}'"
    problem = f"argument {path} is not what was declared"
    do = error.advice or f"pass {error.expected} as {path}"
    return KernelError(name, problem, expected=error.expected, found=error.found, declared=location, do=do)


def values(tree: ArgumentTree, name: str, location: str, flat: Callable[..., Any]) -> dict[str, Any]:
    """Return what that source uses, by name (Any: functions and defaults)."""

    def refuse(error: MisfitError) -> NoReturn:
        raise refusal(name, location, error) from None

    found: dict[str, Any] = {f"take${node.name}": node.take for node in tree.inputs}
    for parameter in tree.signature.parameters.values():
        if parameter.default is not parameter.empty:
            found[f"default${parameter.name}"] = parameter.default
    found.update(MisfitError=MisfitError, refuse=refuse, flat=flat)
    return found if tree.results is None else {**found, "give": tree.results.give}
