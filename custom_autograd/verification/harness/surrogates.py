"""Gradients that are not the derivative, as their author declares with `surrogate=`: which comparisons leave them out.

of a reference     its autograd gives the intended gradients: compared with it, and not with finite differences
of a rule          compared with neither
of a jvp           its tangents are compared with neither, and not with the backward
"""

from collections.abc import Mapping
from dataclasses import replace

from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import quote, show
from custom_autograd.verification.harness.base import NothingToCheckError
from custom_autograd.verification.harness.differentiable import TensorFunction
from custom_autograd.verification.harness.targets import Target


def with_surrogate(target: Target, reason: str | None) -> Target:
    """Return a target none of whose gradients and tangents is the derivative, for a reason; itself for None.

    Raises:
        CheckError: the reason is not a text.
    """
    if reason is None:
        return target
    if not isinstance(reason, str) or not reason.strip():
        raise CheckError(
            target.name,
            "surrogate= takes the reason why the gradient is not the derivative",
            expected="a text",
            found=show(reason),
            do="write surrogate='straight through: the derivative of round is taken to be 1'",
        )
    names = [argument.name for argument in target.arguments]
    return replace(target, surrogates=dict.fromkeys(names, reason), tangent_surrogate=reason)


def require_tangents(function: TensorFunction) -> None:
    """Raise NothingToCheckError if the tangents of the op are not the derivative on purpose."""
    reason = function.target.tangent_surrogate
    if reason:
        raise NothingToCheckError(f"{NO_TANGENT}: {reason}")


NO_TANGENT = "the tangent is not the derivative"


def surrogates_of(function: TensorFunction) -> Mapping[int, str]:
    """Return the arguments whose gradients finite differences must not be compared with: the reason by position."""
    reason = function.target.reference_surrogate
    return {**(dict.fromkeys(range(len(function.positions)), reason) if reason else {}), **_surrogate_rules(function)}


def with_derivatives(function: TensorFunction) -> TensorFunction:
    """Return the function of those arguments whose gradients finite differences verify.

    Raises:
        NothingToCheckError: there are none.
    """
    return without(function, surrogates_of(function))


def with_reference_gradients(function: TensorFunction) -> TensorFunction:
    """Return the function of those arguments whose gradients are those of a function, such as the reference.

    Raises:
        NothingToCheckError: there are none.
    """
    return without(function, _surrogate_rules(function))


def without(function: TensorFunction, surrogates: Mapping[int, str]) -> TensorFunction:
    """Return the function of its other arguments; raise NothingToCheckError if there are none."""
    kept = [i for i in range(len(function.positions)) if i not in surrogates]
    if not kept:
        raise NothingToCheckError(explain(function, surrogates))
    return function.restricted_to(kept)


def explain(function: TensorFunction, surrogates: Mapping[int, str]) -> str:
    """Return the reasons, each with the names of the arguments that it is given for."""
    names = {why: [function.names[i] for i in surrogates if surrogates[i] == why] for why in surrogates.values()}
    return "; ".join(f"the gradient of {quote(names[why])} is not the derivative: {why}" for why in names)


def _surrogate_rules(function: TensorFunction) -> dict[int, str]:
    leaves, target = function.sample.leaves(), function.target
    reasons = [target.surrogates.get(target.argument_of(leaves[position]).name) for position in function.positions]
    return {i: reason for i, reason in enumerate(reasons) if reason}
