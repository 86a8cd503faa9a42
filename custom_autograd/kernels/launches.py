"""Launches of GPU kernels: refused ones, and those that are recorded in a graph.

Refusals come from the driver, from Triton and from the compilers that it runs, at the first launch on a device.
Exceptions that a kernel itself may cause, such as those about memory, are not among them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.messages import first_line
from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for which a launch is refused.

    Attributes:
        problem: what is wrong, in the present tense.
        text: a pattern in the text of the exception.
        do: what to do about it.
        is_late: another launch of the same call may have come before.
    """

    problem: str
    text: str
    do: str
    is_late: bool = True


def unavailable(kernel: str, error: Exception) -> KernelUnavailable | None:
    """Return the error of a kernel that cannot run here, from an exception of its launch; None for any other."""
    is_of_compiler = isinstance(error, subprocess.CalledProcessError)
    reason = COMPILER if is_of_compiler else next((one for one in REASONS if re.search(one.text, str(error))), None)
    if reason is None:
        return None
    found = KernelUnavailable(kernel, reason.problem, found=first_line(error), do=reason.do)
    found.is_late = reason.is_late
    return found


COMPILER = Reason(
    "the launcher of the kernel cannot be compiled",
    r"Failed to find C compiler",
    "install a C compiler and Python's headers, or set CC, or register another kernel for the device",
)
REASONS = (
    COMPILER,
    Reason(
        "the kernel needs a GPU that Triton has a driver for",
        r"\d+ active drivers|Backend device '.*' is not active",
        "call it with tensors on such a GPU, or register another kernel for this device",
        is_late=False,
    ),
    Reason(
        "the kernel needs ptxas, the assembler of CUDA",
        r"Cannot find ptxas",
        "set TRITON_PTXAS_PATH, install Triton again, or register another kernel for the device",
    ),
    Reason(
        "the GPU does not have the resources that the kernel needs",
        r"^out of resource: ",
        "use smaller blocks or fewer stages, or register another kernel for such GPUs",
    ),
    Reason(
        "the kernel has no code that this GPU can run",
        r"no kernel image is available|device kernel image is invalid|invalid device function"
        r"|not supported in this architecture|PTXAS error: .*(not supported on|requires) .*sm_\d+",
        "unset TORCH_CUDA_ARCH_LIST, or add the compute capability of the GPU to it, or register another kernel",
    ),
    Reason(
        "the driver of the GPU is too old for the kernel",
        r"unsupported toolchain|driver version is insufficient",
        "update the driver, compile with the CUDA toolkit of its version, or register another kernel",
    ),
)


_are_recorded: ContextVar[bool] = ContextVar("are_recorded", default=False)


def are_recorded() -> bool:
    """Return True while a kernel is traced into a graph."""
    return _are_recorded.get()


def is_interpreted() -> bool:
    """Return True if Triton's interpreter runs kernels: no graph can hold their launches then."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@contextmanager
def recorded() -> Iterator[None]:
    """Record launches while the context is open."""
    token = _are_recorded.set(True)
    try:
        yield
    finally:
        _are_recorded.reset(token)
