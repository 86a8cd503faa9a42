"""Every exception this package raises on purpose.

CustomAutogradError (RuntimeError)
  DeclarationError (also ValueError)     the declaration of an op cannot stand: change the declaration
  RegistrationError                      a rule, kernel or fake does not fit the op: change what is registered
  KernelError                            a kernel, or the lack of one: change the kernel or the arguments
    KernelUnavailable                    a kernel cannot be built or loaded here: the next one runs, where there is one
  GradientError                          a derivative is wrong, missing or impossible: change or add a rule
    GradientUnavailable                  the op has no such derivative: no rule is registered, or none can be derived
  CheckError (also AssertionError)       verification found something, or could not start
"""


class CustomAutogradError(RuntimeError):
    """Anything this package refuses; catch it to catch all of the errors below."""


class DeclarationError(CustomAutogradError, ValueError):
    """An op was declared in a way that cannot work."""


class RegistrationError(CustomAutogradError):
    """What was registered for an op does not fit its schema, or the place is taken."""


class KernelError(CustomAutogradError):
    """A kernel returned something its schema does not allow, or no kernel serves the arguments."""


class KernelUnavailable(KernelError):  # noqa: N818 - a state, not a mistake
    """A kernel cannot be built or loaded here; raised before anything was computed or written."""


class GradientError(CustomAutogradError):
    """A gradient or a tangent is wrong, missing, or cannot be computed."""


class GradientUnavailable(GradientError):  # noqa: N818 - a state, not a mistake
    """The op has no such derivative: no rule is registered for it, and none can be derived."""


class CheckError(CustomAutogradError, AssertionError):
    """A check failed, or checking could not start."""


class KernelWarning(UserWarning):
    """A kernel could not be built, and something slower runs in its place."""
