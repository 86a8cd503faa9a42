"""Custom PyTorch operations that are right in every mode, fast to call, and verified."""

from typing import TYPE_CHECKING

from custom_autograd.core.lazy import loader_of

if TYPE_CHECKING:
    from custom_autograd.adoption.function_ops import from_function
    from custom_autograd.adoption.op_definitions import from_custom_op_def
    from custom_autograd.core.errors import (
        CheckError,
        CustomAutogradError,
        DeclarationError,
        FakeUnavailable,
        GradientError,
        GradientUnavailable,
        KernelError,
        RegistrationError,
        VmapUnavailable,
    )
    from custom_autograd.execution.proofs import through_dispatcher
    from custom_autograd.graph.backward_end import on_backward_end
    from custom_autograd.graph.checkpointing import checkpointing
    from custom_autograd.graph.inspection import inspect
    from custom_autograd.graph.policies import saving
    from custom_autograd.op import CustomOp, custom_op
    from custom_autograd.programs import load_program, save_program
    from custom_autograd.schema.samples import Sample
    from custom_autograd.triton_ops import triton_op, wrap_triton
    from custom_autograd.values.validation import validation
    from custom_autograd.verification.check import check
    from custom_autograd.verification.report import Report, Result

__version__ = "0.2.0"

__all__ = [
    "CheckError",
    "CustomAutogradError",
    "CustomOp",
    "DeclarationError",
    "FakeUnavailable",
    "GradientError",
    "GradientUnavailable",
    "KernelError",
    "RegistrationError",
    "Report",
    "Result",
    "Sample",
    "VmapUnavailable",
    "check",
    "checkpointing",
    "custom_op",
    "from_custom_op_def",
    "from_function",
    "inspect",
    "load_program",
    "on_backward_end",
    "save_program",
    "saving",
    "through_dispatcher",
    "triton_op",
    "validation",
    "wrap_triton",
]

_NAMES = {
    "adoption.function_ops": "from_function",
    "adoption.op_definitions": "from_custom_op_def",
    "core.errors": "CheckError CustomAutogradError DeclarationError FakeUnavailable GradientError GradientUnavailable "
    "KernelError RegistrationError VmapUnavailable",
    "execution.proofs": "through_dispatcher",
    "graph.backward_end": "on_backward_end",
    "graph.checkpointing": "checkpointing",
    "graph.inspection": "inspect",
    "graph.policies": "saving",
    "op": "CustomOp custom_op",
    "programs": "load_program save_program",
    "schema.samples": "Sample",
    "triton_ops": "triton_op wrap_triton",
    "values.validation": "validation",
    "verification.check": "check",
    "verification.report": "Report Result",
}
"""The public names by module, loaded when they are first used, so that `custom-autograd --help` needs no torch."""

__getattr__ = loader_of(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
