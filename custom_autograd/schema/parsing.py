"""A schema string and its declaration options -> Schema; and which input an output aliases."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import is_text, quote, show, suggest
from custom_autograd.core.signatures import find_misfit
from custom_autograd.schema.annotations import DeclarationOptions, Refusal, is_class
from custom_autograd.schema.arguments import Declared, check_known
from custom_autograd.schema.conversions import ArgumentType, static_type
from custom_autograd.schema.names import is_name
from custom_autograd.schema.schema import TENSOR_TYPES, Argument, Output, Schema
from custom_autograd.schema.types import example_of, find_check, find_row, read_default
from custom_autograd.torch_private.definitions import ParsedValue, parse_schema


def find_source(
    name: str, result: ParsedValue, arguments: tuple[ParsedValue, ...], refuse: Refusal
) -> ParsedValue | None:
    """Return the argument that an output aliases, as the schema declares; None if its memory is new."""
    if not result.alias_set:
        return None
    source = next((a for a in arguments if a.alias_set & result.alias_set), None)
    if source is None:
        raise refuse(
            f"the schema declares that output '{name}' aliases an argument, and no argument has its mark",
            expected=f"a mark that an argument has, as in ({result.type}(a) x) -> {result.type}(a)",
            found=f"-> {result.type}({', '.join(sorted(result.alias_set))})",
            do=f"write '-> {result.type}' for new memory: PyTorch cannot compile or functionalize the op as it is",
        )
    return source


def check_aliases(schema: Schema, options: DeclarationOptions, refuse: Refusal) -> None:
    """Check `aliases=`, which maps names of outputs to names of inputs."""
    outputs = {output.name: output for output in schema.outputs}
    for output, argument in options.aliases:
        for name, valid, kind in ((output, schema.output_names, "output"), (argument, schema.argument_names, "input")):
            if name not in valid:
                raise refuse(
                    f"aliases= names '{name}', which is not an {kind}",
                    expected=quote(valid),
                    found=repr(name),
                    do=suggest(name, valid) or "write aliases={'output': 'input'}",
                )
        if outputs[output].type != "Tensor" or schema.argument(argument).type != "Tensor":
            raise refuse(
                f"aliases= declares that output '{output}' may be '{argument}', and they are not both one tensor",
                expected="Tensor and Tensor",
                found=f"{outputs[output].type} and {schema.argument(argument).type}",
            )
        if outputs[output].alias_of is not None or schema.argument(argument).is_mutated:
            raise refuse(
                f"aliases= declares that output '{output}' may be '{argument}', and the schema declares more of them",
                expected="an output of new memory, and an input that is not written to",
                found=schema.text,
                do="take it out of aliases=: what the schema declares holds in every call",
            )


def parse(
    text: str,
    signature: inspect.Signature | None,
    annotations: dict[str, Any],
    declared: dict[str, Declared],
    options: DeclarationOptions,
    refuse: Refusal,
) -> Schema:
    """Parse the schema text, and add what the text cannot say: names, hidden outputs, conversions."""
    if not text.startswith("("):
        raise refuse(
            "the schema does not begin with '('",
            expected="(Tensor x, ...) -> Tensor",
            found=text,
            do="leave the name of the op out of the schema",
        )
    if not is_text(text):
        do = "write characters that UTF-8 has"
        raise refuse("the schema cannot be parsed: it has half of a surrogate pair", found=show(text), do=do)
    try:
        arguments, results = parse_schema("op" + text)
    except RuntimeError as error:
        do = "write it as PyTorch does: (Tensor x, int n=1, *, float? eps=None) -> (Tensor out, Tensor scale)"
        raise refuse(f"the schema cannot be parsed: {str(error).strip()}", found=text, do=do) from error
    except UnicodeDecodeError as error:  # the parser's error, which cuts a character in two
        found = next((repr(name) for name in re.findall(r"\w+", text) if not name.isascii()), show(text))
        do = "rename the argument, the field or the output: the dispatcher takes ASCII letters, digits and underscores"
        raise refuse("the schema has a name that is not ASCII", found=found, do=do) from error
    named_tuple = _named_tuple(annotations)
    built = tuple([_argument(value, declared.get(value.name), options, refuse) for value in arguments])
    outputs = _outputs(results, built, arguments, named_tuple, options, refuse)
    schema = Schema(built, outputs, text, named_tuple, is_one_tuple=True in [one.is_one_tuple for one in results])
    if schema.is_one_tuple and len(outputs) != 1:
        raise _tuple_among_several(schema, refuse)
    _check_against_function(schema, signature, options, refuse)
    _check_names(schema, options, refuse)
    if options.aliases:
        check_aliases(schema, options, refuse)
    return schema


def _argument(value: ParsedValue, declared: Declared | None, options: DeclarationOptions, refuse: Refusal) -> Argument:
    _check_visible(value, refuse)
    if declared is None:
        found, default, kind = _written_type(value, options, refuse), read_default(value.type, value.default), None
        has_default = value.has_default
    else:
        found, default, kind = declared.type, declared.default, declared.parameter.kind
        has_default = declared.parameter.default is not inspect.Parameter.empty
    return Argument(
        name=value.name,
        type=value.type,
        is_keyword_only=value.is_keyword_only,
        is_positional_only=kind is inspect.Parameter.POSITIONAL_ONLY,
        is_variadic=kind is inspect.Parameter.VAR_POSITIONAL,
        is_mutated=value.is_written,
        is_differentiable=value.type in TENSOR_TYPES and value.name not in options.non_differentiable,
        has_default=has_default,
        default=default,
        is_filled=has_default and not value.has_default,
        example=found.example or example_of(value.type),
        to_dispatcher=found.to_dispatcher or find_check(value.type),
        from_dispatcher=found.from_dispatcher,
        choices=found.choices,
    )


def _check_visible(value: ParsedValue, refuse: Refusal) -> None:
    """Refuse a type that may hold tensors where the dispatcher does not look: they would have no gradients."""
    if value.type not in TENSOR_TYPES and re.search(r"\b(Tensor|Any)\b", value.type):
        raise refuse(
            f"the type of '{value.name}' hides tensors from autograd and all transforms",
            expected=", ".join(sorted(TENSOR_TYPES)),
            found=value.type,
            do=f"leave schema= out and annotate '{value.name}': list[Tensor] | None, dict[str, Tensor], ...",
        )


def _written_type(value: ParsedValue, options: DeclarationOptions, refuse: Refusal) -> ArgumentType:
    """Return the type of an argument of a schema that the author wrote."""
    if value.name not in options.static:
        return ArgumentType(value.type)
    if value.type not in ("str", "str?") or value.default is not None:
        raise refuse(
            f"the static argument '{value.name}' does not travel as a string",
            expected=f"'str {value.name}' or 'str? {value.name}=None' in the schema",
            found=value.type + (f", default {value.default!r}" if value.default is not None else ""),
            do="its type in a schema is str: the name of what is passed",
        )
    return static_type(value.name, refuse, is_optional=value.type == "str?")


def _tuple_among_several(schema: Schema, refuse: Refusal) -> DeclarationError:
    return refuse(
        "the schema has a tuple of one among several results",
        expected="-> (Tensor, Tensor), or -> ((Tensor)) alone",
        found=schema.text,
    )


def _named_tuple(annotations: dict[str, Any]) -> type | None:
    annotation = annotations.get("return")
    return annotation if hasattr(annotation, "_fields") and is_class(annotation) else None


def _outputs(
    results: tuple[ParsedValue, ...],
    built: tuple[Argument, ...],
    arguments: tuple[ParsedValue, ...],
    named_tuple: type | None,
    options: DeclarationOptions,
    refuse: Refusal,
) -> tuple[Output, ...]:
    names = _output_names(results, built, named_tuple, options, refuse)
    outputs = []
    for name, result in zip(names, results, strict=True):
        if result.type not in TENSOR_TYPES and not _has_results(result.type):
            raise _no_result(name, result.type, refuse)
        source = find_source(name, result, arguments, refuse)
        is_nameable = result.type in TENSOR_TYPES and name not in options.non_differentiable
        outputs.append(
            Output(
                name=name,
                type=result.type,
                is_hidden=name in options.hidden,
                is_differentiable=is_nameable,
                alias_of=None if source is None else source.name,
                is_view=source is not None and not result.is_written,
                may_be=dict(options.aliases).get(name),
            )
        )
    return tuple(outputs)


def _has_results(spelling: str) -> bool:
    row = find_row(spelling)
    return row is not None and bool(row.results)


def _no_result(name: str, spelling: str, refuse: Refusal) -> DeclarationError:
    do = "return Scalar" if spelling == "complex" else "return a number or a tensor that stands for it"
    if spelling.startswith("Dict"):
        do = "return Tensor[], or declare by annotations, where a TypedDict may be a result"
    elif "[" in spelling:
        do = "return a tensor of the values, or each one as an output: (float, float) for float[]"
    elif spelling.endswith("?"):
        do = f"return {spelling[:-1]}, with a value that stands for None" if _has_results(spelling[:-1]) else do
    return refuse(
        f"output '{name}' has a type that an op cannot return",
        expected="Tensor, Tensor?, Tensor[], bool, int, float, Scalar, or a tuple of those",
        found=spelling,
        do=do,
    )


def check_output_names(given: tuple[str, ...], own: tuple[str, ...], count: int, refuse: Refusal) -> None:
    """Refuse names of outputs= that are too few or too many, or those of other results than they are given to."""
    if len(given) != count:
        raise refuse(
            "outputs= does not have one name per output",
            expected=f"{count} name{'s' * (count != 1)}",
            found=f"{len(given)}: {quote(given)}",
            do="name each value that the function returns, in order",
        )
    for name, its in zip(given, own, strict=True) if own else ():
        if name != its and name in own:
            raise refuse(
                f"outputs= calls the result '{its}' by the name of another one, '{name}'",
                expected=quote(own),
                found=quote(given),
                do="leave outputs= out, or use names that the results do not have",
            )


def _output_names(
    results: tuple[ParsedValue, ...],
    built: tuple[Argument, ...],
    named_tuple: type | None,
    options: DeclarationOptions,
    refuse: Refusal,
) -> tuple[str, ...]:
    written = tuple([result.name for result in results])
    fields: tuple[str, ...] = () if named_tuple is None else named_tuple._fields  # type: ignore[attr-defined]  # a NamedTuple has it
    if options.outputs is not None:
        check_output_names(options.outputs, written if any(written) else fields, len(results), refuse)
        return options.outputs
    if all(written) and written:
        return written
    if named_tuple is not None:
        return fields
    fresh = [index for index, result in enumerate(results) if not result.is_written]
    if len(fresh) == len(options.described):
        described = dict(zip(fresh, options.described, strict=True))
        written = tuple(name or described.get(index, "") for index, name in enumerate(written))
    taken = {*(argument.name for argument in built), *written}
    if len(results) == 1:
        return (written[0] or _free("output", taken),)
    return tuple(name or _free(f"output_{index}", taken) for index, name in enumerate(written))


def _free(name: str, taken: set[str]) -> str:
    """Return a name for an output that has none; with underscores at its end if an argument has that name."""
    return name if name not in taken else _free(f"{name}_", taken)


def _check_against_function(
    schema: Schema, signature: inspect.Signature | None, options: DeclarationOptions, refuse: Refusal
) -> None:
    """Check that a manual schema agrees with `mutates_args` and with the function's parameters."""
    if options.schema is None:
        return
    written = {argument.name for argument in schema.mutated_arguments}
    if not isinstance(options.mutates, str) and written != set(options.mutates):
        raise refuse(
            "mutates_args and the schema do not agree on what is written to",
            expected=f"mutates_args={tuple(sorted(written))!r}",
            found=f"mutates_args={options.mutates!r}",
            do="mark written arguments in the schema as 'Tensor(a!)', and name the same ones",
        )
    check_known("static=", options.static, schema.argument_names, refuse, kind="not an argument")
    if signature is None:
        return
    positional = [a.name for a in schema.arguments if not a.is_keyword_only]
    keywords = [a.name for a in schema.arguments if a.is_keyword_only]
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        raise refuse(
            f"the function does not fit the schema: {find_misfit(signature, positional, keywords) or error}",
            expected=f"parameters {quote(schema.argument_names)}",
            found=str(signature),
        ) from error


def _check_names(schema: Schema, options: DeclarationOptions, refuse: Refusal) -> None:
    names = [*schema.argument_names, *schema.output_names]
    for name in names:
        if not is_name(name):
            raise refuse(
                f"{name!r} cannot be the name of an argument or an output",
                expected="Python identifiers that are not keywords",
                do="rename it, so that rules can name it",
            )
    if len(set(names)) < len(names):
        _check_unique(schema, names, refuse)
    if options.hidden:
        check_known("hidden=", options.hidden, schema.output_names, refuse, kind="not an output")
    if options.non_differentiable:
        check_known("non_differentiable=", options.non_differentiable, names, refuse, kind="neither input nor output")
    if schema.hidden_outputs and not schema.visible_outputs and not schema.mutated_arguments:
        raise refuse("every output is hidden", do="leave at least one output visible")


def _check_unique(schema: Schema, names: Iterable[str], refuse: Refusal) -> None:
    aliased = {output.name for output in schema.outputs if output.alias_of == output.name}
    seen: set[str] = set()
    for name in names:
        if name in seen and name not in aliased:
            raise refuse(
                f"the name '{name}' is used twice among inputs and outputs",
                found=quote(names),
                do="give the output another name through outputs=",
            )
        seen.add(name)
