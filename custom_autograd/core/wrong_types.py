"""The dispatcher's error about the type of an argument, in the words of an op or of a kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping

from custom_autograd.core.argument_types import example_of
from custom_autograd.core.errors import KernelError, Origin
from custom_autograd.core.messages import LONGEST_VALUE

REFUSAL = re.compile(
    r"(?P<op>\S+)\(\) Expected a value of type '(?P<expected>.+)' for argument '(?P<name>\w+)' but instead found type "
    r"'(?P<found>.+)'\.\nPosition: \d+\nValue: (?P<value>.*)"
)


def error_of_type(
    origin: Origin, operator: str, error: Exception, examples: Mapping[str, str] | None = None
) -> KernelError | None:
    """Return the error of a call whose argument has the wrong type; None if the exception is about anything else.

    Args:
        origin: of the op or the kernel.
        operator: its name in the dispatcher, "namespace::name".
        error: what the dispatcher raised.
        examples: by argument, a value that it takes; None if its type is all that is known.
    """
    told = REFUSAL.match(str(error))
    if told is None or told["op"] != operator:
        return None
    name, expected, value = told["name"], told["expected"].replace("List", "list"), told["value"][:LONGEST_VALUE]
    return origin.error(
        KernelError,
        f"argument '{name}' has the wrong type",
        expected=expected,
        found=f"{told['found']}: {value}",
        do=f"pass torch.as_tensor({name})"
        if expected.endswith("Tensor")
        else f"pass {examples[name] if examples else _example(expected)}, for example",
    )


def _example(expected: str) -> str:
    """Return a value of a type as TorchScript spells it: `Optional[list[int]]`, `number`."""
    element: str = re.findall(r"\w+", expected)[-1]
    spelling = "Scalar" if element == "number" else element
    return example_of(spelling + "[]" * ("list[" in expected))
