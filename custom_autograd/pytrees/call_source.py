"""Generates what `op(...)` runs where arguments or results are containers: takes them apart, and puts them together."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from custom_autograd.core.errors import KernelError
from custom_autograd.pytrees.argument_tree import ArgumentTree
from custom_autograd.pytrees.fields import Plain
from custom_autograd.pytrees.treespecs import MisfitError


def parameters(signature: inspect.Signature, *, rest: str) -> str:
    """Return source of a parameter list; a default is written `$default$<name>`.

    Args:
        signature: of what the author declared.
        rest: what takes further positional arguments, unless a parameter does.
    """
    parts, was_starred, previous = [], False, None
    for parameter in signature.parameters.values():
        if previous is not None and previous.kind is previous.POSITIONAL_ONLY and parameter.kind is not previous.kind:
            parts.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and not was_starred:
            parts.append(f"*{rest}")
            was_starred = True
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        was_starred = was_starred or bool(star)
        default = "" if parameter.default is parameter.empty else f"=$default${parameter.name}"
        parts.append(f"{star}{parameter.name}{default}")
        previous = parameter
    if previous is not None and previous.kind is previous.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts if was_starred or not rest else [*parts, f"*{rest}"])


def lines(tree: ArgumentTree, name: str, head: str, first: str) -> list[str]:
    """Return the source of the call of one op, line by line.

    Args:
        tree: its structure.
        name: of the op.
        head: what it is called.
        first: the parameter before the op's own, or nothing.
    """
    taken, passed = [], [first] if first else []
    for node, parameter in zip(tree.inputs, tree.signature.parameters.values(), strict=True):
        names = list(node.flat())
        if not isinstance(node, Plain):
            taken.append(f"            {', '.join(names)}, = $take${node.name}({node.name})")
        is_keyword = parameter.kind is parameter.KEYWORD_ONLY
        passed += [f"{flat}={flat}" if is_keyword else flat for flat in names]
    own = parameters(tree.signature, rest="$more")
    before = "" if not first else f"{first}, " if "/" in own else f"{first}, /, "
    body = [f"def {head}({before}{own}):", f'    """What {name}(...) runs: {name} itself knows no containers."""']
    if not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in tree.signature.parameters.values()):
        body += ["    if $more:", "        $refuse_more($more)"]
    if taken:
        body += ["    try:", *[line[4:] for line in taken]]
        body += ["    except $MisfitError as $error:", "        $refuse($error)"]
    call = f"$flat({', '.join(passed)})"
    return [*body, f"    return {call if tree.results is None else f'$give({call})'}"]


def refusal(name: str, location: str, error: MisfitError) -> KernelError:
    """Return the error that says which argument, or which field of one, is not what was declared."""
    path = error.path if "'" in error.path else f"'{error.path}'"
    problem = f"argument {path} is not what was declared"
    facts = {
        "expected": error.expected,
        "found": error.found,
        "declared": location,
        "do": error.advice or f"pass {error.expected} as {path}",
    }
    return KernelError(name, problem, **facts)


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
