"""What a check is: a name, what it applies to, and `run(target, sample)`, which yields findings.

finding     one thing that was looked at: passed, failed with what is wrong, or skipped with the reason
refusal     an op that raises because it cannot do something is honest: the check is skipped, not failed
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from custom_autograd.checks.targets import Target
from custom_autograd.core.errors import GradientError, RegistrationError
from custom_autograd.core.samples import Sample


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check looked at."""

    status: Literal["passed", "failed", "skipped"]
    message: str = ""


PASSED = Finding("passed")


def failed(message: str) -> Finding:
    """Something is wrong; the message says what was expected and what was found."""
    return Finding("failed", message)


def skipped(reason: str) -> Finding:
    """Nothing was looked at, for this reason."""
    return Finding("skipped", reason)


class NothingToCheckError(Exception):
    """Raised inside a check that finds that it has nothing to look at on this sample; its text is the reason."""


class Check(ABC):
    """One kind of verification.

    Attributes:
        name: what `checks=` and reports call it.
        code: a short, stable code; a letter for the area (F forward, C compile, G gradient, T transform) and a number.
        purpose: one line that completes "verifies that ...".
        needs: names of checks without which this one says nothing new; where one of them fails, it is skipped.
    """

    name: ClassVar[str]
    code: ClassVar[str]
    purpose: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()

    def applies_to(self, target: Target) -> str | None:
        """Why the check has nothing to look at in this target, or None if it has."""
        del target
        return None

    @abstractmethod
    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Looks at one sample and yields what it finds; whatever it raises is reported as an error.

        Raises:
            NothingToCheckError: there is nothing to look at on this sample.
        """


def find_refusal(error: BaseException) -> str | None:
    """Why the op says that it cannot do what was asked; None if the error is anything else."""
    error = root_cause(error)
    if isinstance(error, (NotImplementedError, RegistrationError)):
        return first_line(error)
    phrases = GRADIENT_REFUSALS if isinstance(error, GradientError) else REFUSALS
    lines = [line.strip() for line in str(error).splitlines() if any(phrase in line for phrase in phrases)]
    return f"{type(error).__name__}: {lines[0]}" if lines else None


def root_cause(error: BaseException) -> BaseException:
    """The error at the beginning of a chain: the compiler wraps what an op raises, more than once."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """The class and the first line of an error, and the next one where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {text}"


REFUSALS = (
    "marked with @once_differentiable",
    "no autograd formula was registered",
    "no fake is registered",
    "no fake impl",
    "Batching rule not implemented",
    "does not have vmap support",
    "override the setup_context staticmethod",
    "does not support forward AD",
    "must implement the jvp function",
    "must implement either the backward",
    "derivative for",
    "is not differentiable",
    "Cannot access data pointer of Tensor that doesn't have storage",
)
"""What torch says when an op cannot do something, where the class of the error alone does not tell."""

GRADIENT_REFUSALS = (
    "no backward",
    "no rule",
    "neither a jvp nor a backward",
    "cannot derive",
    "once-differentiable",
    "is not known",
    "is not differentiable",
)
"""What a GradientError says where a rule is missing; any other says that what a rule returned is wrong."""
