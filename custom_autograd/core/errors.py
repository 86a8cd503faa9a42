"""Every exception this package raises on purpose.

CustomAutogradError (RuntimeError)
  DeclarationError (also ValueError)     the declaration of an op cannot stand: change the declaration
  RegistrationError                      a rule, kernel or fake does not fit the op: change what is registered
  KernelError                            a kernel, or the lack of one: change the kernel or the arguments
    KernelUnavailable                    a kernel cannot be built or loaded here: the next one runs, where there is one
    FakeUnavailable                      the op meets fake tensors and has no fake: register one
    VmapUnavailable                      vmap cannot batch the op as it is asked to: change the call, or add a rule
  ShapeError (also ValueError)           a tensor does not have the dimensions of the op's line: change the arguments
  GradientError                          a derivative is wrong, missing or impossible: change or add a rule
    GradientUnavailable                  the op has no such derivative: no rule is registered, or none can be derived
  CheckError (also AssertionError)       verification found something, or could not start
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from custom_autograd.core.messages import format_message
from custom_autograd.frozen_dataclass import dataclass

_GIVEN: Any = BaseException.args  # its descriptor: what a class was called with (Any: typeshed sees a tuple)


class CustomAutogradError(RuntimeError):
    """Anything this package refuses; catch it to catch all of the errors below.

    Args:
        op: the qualified name of the op, or a substitute before there is one; the whole text if it is alone.
        problem: what is wrong, in the present tense.
        expected: what would have been right.
        found: what was there instead.
        rule: file and line of the rule, kernel or fake at fault.
        declared: file and line of the declaration of the op.
        do: what to do about it.

    Attributes:
        op, problem, expected, found, rule, declared, do: as given; `op` is None if there is only a text.
    """

    # What a subclass has whose __init__ does not call this one's.
    op: str | None = None
    problem: str | None = None
    expected: str | None = None
    found: str | None = None
    rule: str | None = None
    declared: str | None = None
    do: str | None = None
    _is_amended = False

    def __init__(
        self,
        op: str = "",
        problem: str | None = None,
        *,
        expected: str | None = None,
        found: str | None = None,
        rule: str | None = None,
        declared: str | None = None,
        do: str | None = None,
    ) -> None:
        # Not super().__init__: Dynamo cannot trace it, and BaseException.__new__ has set `args` already.
        self.op = None if problem is None else op
        self.problem = op if problem is None else problem
        self.expected = expected
        self.found = found
        self.rule = rule
        self.declared = declared
        self.do = do

    def __str__(self) -> str:
        """Return the text: the problem, then a line for each fact."""
        if self.problem is None or self._is_amended:
            return super().__str__()
        if self.op is None:
            return str(self.problem)  # an author may have passed another exception
        return format_message(
            self.op,
            self.problem,
            expected=self.expected,
            found=self.found,
            rule=self.rule,
            declared=self.declared,
            do=self.do,
        )

    def __repr__(self) -> str:
        """Return the class and the text, which torch.compile quotes in its own error."""
        return f"{type(self).__name__}({str(self)!r})"

    if not TYPE_CHECKING:  # to type checkers it stays the attribute of BaseException

        @property
        def args(self) -> tuple[Any, ...]:
            """Return the text, as of any other exception; torch sets it to add to the text where an error came from."""
            if self.problem is None or self._is_amended:
                return _GIVEN.__get__(self)
            return (CustomAutogradError.__str__(self),)

        @args.setter
        def args(self, args: tuple[Any, ...]) -> None:
            _GIVEN.__set__(self, args)
            self._is_amended = True


class DeclarationError(CustomAutogradError, ValueError):
    """An op was declared in a way that cannot work."""


class RegistrationError(CustomAutogradError):
    """A registration does not fit the op's schema, or the rule is already registered."""


class KernelError(CustomAutogradError):
    """A kernel returned something its schema does not allow, or no kernel serves the arguments."""


class KernelUnavailable(KernelError):  # noqa: N818 - a state, not a mistake
    """A kernel cannot be built or loaded here; raised before anything was computed or written.

    Attributes:
        is_late: True if the kernel may have written to arguments before: then no other kernel may run instead.
    """

    is_late = False


class FakeUnavailable(KernelError):  # noqa: N818 - a state, not a mistake
    """The op meets fake tensors, and neither a fake nor a reference is registered."""


class VmapUnavailable(KernelError):  # noqa: N818 - a state, not a mistake
    """The op cannot be batched as `torch.vmap` was asked to."""


class ShapeError(CustomAutogradError, ValueError):
    """A tensor does not have the dimensions that the op declares with `shapes=`."""


class GradientError(CustomAutogradError):
    """A gradient or a tangent is wrong, missing, or cannot be computed."""


class GradientUnavailable(GradientError):  # noqa: N818 - a state, not a mistake
    """The op has no such derivative: no rule is registered for it, and none can be derived."""


class CheckError(CustomAutogradError, AssertionError):
    """A check failed, or checking could not start."""


class KernelWarning(UserWarning):
    """A kernel could not be built, and something slower runs instead."""


Error = TypeVar("Error", bound=CustomAutogradError)


@dataclass(frozen=True, slots=True)
class Origin:
    """The common part of errors about one op, or about one of its rules.

    Attributes:
        op: the qualified name of the op.
        declared: file and line of its declaration.
        rule: file and line of the rule, kernel or fake at fault, if there is one.
    """

    op: str
    declared: str
    rule: str | None = None

    def error(
        self,
        kind: type[Error],
        problem: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        do: str | None = None,
    ) -> Error:
        """Return the error of a class that says what is wrong here; arguments as for `CustomAutogradError`."""
        return kind(self.op, problem, expected=expected, found=found, rule=self.rule, declared=self.declared, do=do)


def raise_if_any(error: Exception | None, cause: Exception | None = None) -> None:
    """Raise an error if there is one, with its cause.

    A variable that holds a raised error keeps its traceback, and so all frames and what they hold, alive until a
    garbage collection: a caller passes the error without one.
    """
    try:
        if error is not None:
            raise error from cause
    finally:
        del error, cause
