"""Stable names for packages that add checks or kernel languages; the modules that define them may move.

A package that adds a check subclasses `Check`, and names the class in an entry point of the group
`custom_autograd.checks`: see docs/extending/add-a-check.md. A package that adds a language of kernels subclasses
`KernelSource`: see docs/extending/add-a-kernel-language.md.
"""

from custom_autograd.kernels.lazy_kernel import LazyKernel as KernelSource
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    measured,
    skipped,
)
from custom_autograd.verification.harness.runner import Case, run
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on, target_of

__all__ = [
    "PASSED",
    "Case",
    "Check",
    "Finding",
    "KernelSource",
    "NothingToCheckError",
    "Sample",
    "Target",
    "call_on",
    "copy",
    "failed",
    "measured",
    "run",
    "skipped",
    "target_of",
]
