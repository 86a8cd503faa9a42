"""Which input an output aliases, as the schema or `aliases=` says, and whether that can be."""

from __future__ import annotations

from custom_autograd.core.declaration_options import DeclarationOptions, Refusal
from custom_autograd.core.messages import quote, suggest
from custom_autograd.core.schema import Schema
from custom_autograd.torch_private.schemas import ParsedValue


def find_source(
    name: str, result: ParsedValue, arguments: tuple[ParsedValue, ...], refuse: Refusal
) -> ParsedValue | None:
    """Return the argument that an output aliases, as the schema says; None if its memory is new.

    Raises:
        DeclarationError: the output has a mark that no argument has.
    """
    source = next((a for a in arguments if a.alias_set & result.alias_set), None)
    if result.alias_set and source is None:
        raise refuse(
            f"the schema says that output '{name}' aliases an argument, and no argument has its mark",
            expected=f"a mark that an argument has, as in ({result.type}(a) x) -> {result.type}(a)",
            found=f"-> {result.type}({', '.join(sorted(result.alias_set))})",
            do=f"write '-> {result.type}' for new memory: PyTorch cannot compile or functionalize the op as it is",
        )
    return source


def check_aliases(schema: Schema, options: DeclarationOptions, refuse: Refusal) -> None:
    """Check `aliases=`, which maps names of outputs to names of inputs.

    Raises:
        DeclarationError: a name is unknown, is not a single tensor, or aliases already.
    """
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
                f"aliases= says that output '{output}' may be '{argument}', and they are not both one tensor",
                expected="Tensor and Tensor",
                found=f"{outputs[output].type} and {schema.argument(argument).type}",
            )
        if outputs[output].alias_of is not None or schema.argument(argument).is_mutated:
            raise refuse(
                f"aliases= says that output '{output}' may be '{argument}', and the schema says more of them",
                expected="an output of new memory, and an input that is not written to",
                found=schema.text,
                do="take it out of aliases=: what the schema says holds in every call",
            )
