"""Whether `aliases=` names outputs and inputs that can be one and the same tensor."""

from __future__ import annotations

from custom_autograd.core.declaration_options import DeclarationOptions, Refusal
from custom_autograd.core.messages import quote, suggest
from custom_autograd.core.schema import Schema


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
