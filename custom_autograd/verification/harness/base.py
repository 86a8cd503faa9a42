"""What a check is: a name, what it applies to, and `run(target, sample)`, which yields findings.

finding     one thing that was looked at: passed, failed with what is wrong and why, or skipped with the reason
refusal     an op that raises because it cannot do something is honest: the check is skipped, not failed; a rule
            that is registered and raises is not

Which registered rule an exception left is read from the mark that the rule's call sets, never from words. A rule that
torch calls (of a torch.autograd.Function, or of a torch.library op) bears no mark; it is in the traceback.
"""

import re
import traceback
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import torch

from custom_autograd.capabilities.fake_rules import NO_FAKE
from custom_autograd.core.errors import (
    FakeUnavailable,
    GradientError,
    GradientUnavailable,
    RegistrationError,
    VmapUnavailable,
)
from custom_autograd.core.locations import format_location
from custom_autograd.schema.samples import Sample
from custom_autograd.values.user_code import NoteError, causes_of, rule_left_by
from custom_autograd.verification.harness.targets import Target

PACKAGE = str(Path(__file__).parents[2])
TORCH = str(Path(torch.__file__).parent)
GENERATED = "<custom_autograd "
"""How the file names of generated source begin."""

METHODS = {"backward", "vjp", "jvp", "vmap", "setup_context"}
"""The rules of a torch.autograd.Function."""

LIBRARY = str(Path(TORCH, "_library", "autograd.py"))
"""The file whose `backward` calls the rule of a torch.library op."""


def rule_behind(error: BaseException) -> str | None:
    """Return file:line of the rule that an exception left, or one of those that led to it; None if none did."""
    found = (rule_left_by(one) or _in_traceback(one) for one in causes_of(error))
    return next(filter(None, found), None)


def _in_traceback(error: BaseException) -> str:
    """Return file:line of the innermost frame of the author's in a rule that torch called; empty if there is none."""
    is_in_rule, found = False, ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        is_in_rule = is_in_rule or _calls_rules(code)
        if is_in_rule and _is_authors(code):
            found = format_location(code.co_filename, line)
    return found


def _calls_rules(code: types.CodeType) -> bool:
    if code.co_filename == LIBRARY:
        return code.co_name == "backward"
    return code.co_name in METHODS and _is_authors(code)


def _is_authors(code: types.CodeType) -> bool:
    return not code.co_filename.startswith((PACKAGE, TORCH, GENERATED))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check looked at.

    Args:
        status: what came of it.
        message: why it failed or was skipped.
        cause: why, probably: "the sign is flipped"; empty if unknown.
        measures: numbers worth keeping by name, such as "bytes saved"; reports show and draw them.
        advice: what to change although nothing failed; reports show it.
        shown: the part of the check, and the call, that show it, where these are not the whole.
    """

    status: Literal["passed", "failed", "skipped"]
    message: str = ""
    cause: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
    advice: str = ""
    shown: "tuple[Check, Sample] | None" = None


PASSED = Finding("passed")


def failed(message: str, *, cause: str = "") -> Finding:
    """Return a failure: its message says what was expected and what was found, its cause the probable reason."""
    return Finding("failed", message, cause)


def measured(**measures: float) -> Finding:
    """Return a pass with numbers that are worth keeping."""
    return Finding("passed", measures=measures)


def skipped(reason: str, *, advice: str = "") -> Finding:
    """Return a skip with its reason; the advice is shown even if everything else passed."""
    return Finding("skipped", reason, advice=advice)


class NothingToCheckError(Exception):
    """Raised inside a check that finds that it has nothing to look at on this sample; its text is the reason."""


class Check(ABC):
    """One kind of verification.

    Attributes:
        name: what `checks=` and reports call it.
        code: a short, stable code; a letter for the area (F forward, C compile, G gradient, T transform, S saving,
            Y system, D device) and a number.
        purpose: one line that completes "verifies that ...".
        group: the kind of check, which `checks=` takes as well: values, layout, derivatives, metadata, transforms,
            compiler, saving or system.
        needs: names of checks without which this one says nothing new; where one of them fails, it is skipped.
        is_quick: whether it belongs to `checks="quick"`.
        most_samples: how many samples it looks at, those with the most kinds of arguments first; all by default. Set
            where a sample costs a compilation.
        is_for_errors: whether it looks at the samples that are declared to raise (`Sample.raises`), and at no other.
    """

    name: ClassVar[str]
    code: ClassVar[str]
    purpose: ClassVar[str]
    group: ClassVar[str] = "other"
    needs: ClassVar[tuple[str, ...]] = ()
    is_quick: ClassVar[bool] = False
    most_samples: ClassVar[int | None] = None
    is_for_errors: ClassVar[bool] = False

    @property
    def asked(self) -> str:
        """Return what `checks=` calls it."""
        return self.name

    @property
    def source(self) -> str:
        """Return how a script spells the check; its name, where it has no parts."""
        return f'"{self.name}"'

    def applies_to(self, target: Target) -> str | None:
        """Return why the check has nothing to look at in this target, or None if it has."""
        del target
        return None

    def parts(self, target: Target, samples: Sequence[Sample]) -> "Mapping[str, Check]":
        """Return narrower checks by label, which together are this one: one pytest item each. Itself by default."""
        del target, samples
        return {"": self}

    def among(self, target: Target, samples: Sequence[Sample]) -> "Check":
        """Return the check for a run on these samples: itself, unless it says something of all of them together."""
        del target, samples
        return self

    def within(self, seconds: float) -> "Check":
        """Return the check for a run that so much CPU time is left for: itself, unless it takes what it is given."""
        del seconds
        return self

    def after(self, passed: "frozenset[str]") -> "Check":
        """Return the check for a sample in which the checks of these names found nothing: itself by default."""
        del passed
        return self

    def further(self) -> "Check":
        """Return the check for the second sample of an op, and those that follow: itself by default."""
        return self

    def ends_others(self, message: str) -> bool:
        """Return True if a finding is a reason to skip the checks that need this one: always by default."""
        del message
        return True

    @abstractmethod
    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Look at one sample and yield what it finds; whatever it raises is reported as an error.

        Raises:
            NothingToCheckError: there is nothing to look at on this sample.
        """


def find_refusal(error: BaseException, *, is_optional: bool = False) -> str | None:
    """Return why the op cannot do what was asked; None if the error is anything else.

    An exception that leaves a registered rule is a fault of the rule, whoever raised it, unless its class says
    otherwise: GradientUnavailable always does.

    Args:
        error: what was raised.
        is_optional: whether a rule need not take this call: NotImplementedError then is a refusal as well.
    """
    rule = rule_behind(error)
    error = root_cause(error)
    if isinstance(error, (GradientUnavailable, VmapUnavailable, RegistrationError)):
        return first_line(error)
    is_lacking = isinstance(error, NotImplementedError)
    if isinstance(error, GradientError) or rule is not None:
        return first_line(error) if is_lacking and is_optional else None
    if is_lacking:
        return first_line(error)
    lines = [line.strip() for line in str(error).splitlines() if any(phrase in line for phrase in REFUSALS)]
    return f"{type(error).__name__}: {lines[0]}" if lines else None


def refusal_or_raise(error: Exception, *, is_optional: bool = False) -> str:
    """Return why the op cannot do what was asked, as `find_refusal` does; raise the error if it is anything else."""
    refusal = find_refusal(error, is_optional=is_optional)
    if refusal is None:
        raise error
    return refusal


def root_cause(error: BaseException) -> BaseException:
    """Return the error at the beginning of a chain: the compiler wraps what an op raises, more than once."""
    for cause in causes_of(error):
        if isinstance(cause, NoteError):
            break
        error = cause
        if isinstance(error, FakeUnavailable):  # it explains its cause
            break
    return error


def first_line(error: BaseException) -> str:
    """Return the class and the first line of an error, and the next one where the first only announces it.

    Of an error that Dynamo raised again, because a fake had raised it, this is the first line.
    """
    quoted = QUOTED.search(str(error))
    if quoted is not None:
        return f"{quoted[1]}: {quoted[3]}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {text}"


QUOTED = re.compile(r"with fake tensors: .+ got (\w+)\(([\"'])(.+?)(?:\\n|\2\))", re.DOTALL)
"""The class and the first line of an error in Dynamo's TorchRuntimeError."""

REFUSALS = (
    "marked with @once_differentiable",
    "no autograd formula was registered",
    "no fake impl",
    "Batching rule not implemented",
    "does not have vmap support",
    "do not support batching",
    "don't support vmap",
    "we do not yet support",
    NO_FAKE,  # our own: Dynamo keeps only the text of what a fake raises
    "called random operation while in randomness error mode",
    "override the setup_context staticmethod",
    "does not support forward AD",
    "must implement the jvp function",
    "must implement either the backward",
    "derivative for",
    "does not support automatic differentiation",
    "is not differentiable",
    "Cannot access data pointer of Tensor that doesn't have storage",
)
"""What torch reports when an op cannot do something; in an exception that leaves a rule it means nothing."""
