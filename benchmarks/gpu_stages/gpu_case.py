"""One op on a size made for a GPU, and whether a callable computes what the reference does in higher precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from cases import Case
from torch import Tensor

from agreement import gradients, leaves, moments_differ, results

WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}
# ‖found - exact‖ / ‖exact‖: bfloat16 rounds to 2⁻⁹, and intermediate results too; float32 sums in another order.
ERRORS = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-4, torch.float64: 1e-10}


@dataclass(frozen=True)
class GpuCase(Case):
    """A case with what only GPUs are measured by.

    Attributes:
        family: the group of ops that a target speaks of, such as "norm".
        backward_bytes: what backward reads and writes at least; `bytes_moved` is that of forward.
        flops: operations of forward, where arithmetic bounds it.
        exact: what is compared with, where the reference takes too much memory; called with wider arguments.
        to_compile: what torch.compile is given, where it compiles the reference wrongly.
        is_drawn: what it returns is drawn at random, so that only its moments can be compared.
    """

    family: str = ""
    backward_bytes: int | None = None
    flops: float | None = None
    exact: Callable[..., Any] | None = None
    to_compile: Callable[..., Any] | None = None
    is_drawn: bool = False


def widened(value: Any) -> Any:
    """Return arguments with floating-point tensors in a wider dtype."""
    if isinstance(value, Tensor) and value.dtype in WIDER:
        return value.detach().to(WIDER[value.dtype]).requires_grad_(value.requires_grad)
    return tuple(map(widened, value)) if isinstance(value, tuple) else value


def exact_values(case: GpuCase, device: str) -> tuple[list[Tensor], list[Tensor]]:
    """Return results and gradients of the reference in higher precision, or of a drawn result in its own."""
    exact = case.exact or case.reference
    wide = case if case.is_drawn else replace(case, arguments=lambda device: widened(case.arguments(device)))
    expected = results(wide, exact, device)
    return expected, [] if case.is_drawn else gradients(wide, exact, device)


def errors(
    case: GpuCase, work: Callable[..., Any], device: str, exact: tuple[list[Tensor], list[Tensor]]
) -> list[float]:
    """Return the relative error of each result and gradient.

    Raises:
        ValueError: if one is too large, or NaN.
    """
    if case.is_drawn:
        problem = next(filter(None, map(moments_differ, results(case, work, device), exact[0])), None)
        if problem:
            raise ValueError(problem)
        return []
    found = [*results(case, work, device), *gradients(case, work, device)]
    expected = [*exact[0], *exact[1]]
    if len(found) != len(expected):
        raise ValueError(f"{len(found)} results and gradients instead of {len(expected)}")
    given = {tensor.dtype for tensor in leaves(case.arguments(device))} & ERRORS.keys()
    allowed = max(ERRORS[dtype] for dtype in given)
    return [relative_error(*pair, allowed) for pair in zip(found, expected, strict=True)]


def relative_error(found: Tensor, expected: Tensor, allowed: float) -> float:
    """Return ‖found - expected‖ / ‖expected‖.

    Raises:
        ValueError: if it is larger than the dtype of the arguments explains, or the shapes differ.
    """
    if found.shape != expected.shape:
        raise ValueError(f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    if not found.is_floating_point():
        if not torch.equal(found, expected):
            raise ValueError("other integers")
        return 0.0
    distance = torch.linalg.vector_norm(found.to(expected.dtype) - expected).item()
    error = distance / max(torch.linalg.vector_norm(expected).item(), 1e-30)
    if not error <= allowed:
        raise ValueError(f"relative error {error:.2g}, where {allowed:.2g} is allowed")
    return float(f"{error:.2g}")
