"""Custom PyTorch operations that are right in every mode, fast to call, and verified."""

from custom_autograd.checking import check
from custom_autograd.core.errors import (
    CheckError,
    CustomAutogradError,
    DeclarationError,
    GradientError,
    KernelError,
    RegistrationError,
)
from custom_autograd.core.samples import Sample
from custom_autograd.op import CustomOp, custom_op
from custom_autograd.report import Report, Result

__version__ = "0.1.0"

__all__ = [
    "CheckError",
    "CustomAutogradError",
    "CustomOp",
    "DeclarationError",
    "GradientError",
    "KernelError",
    "RegistrationError",
    "Report",
    "Result",
    "Sample",
    "check",
    "custom_op",
]
