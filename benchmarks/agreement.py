"""Whether two callables of a gallery case compute the same: what computes something else is not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from cases import Case
from torch import Tensor

# Of the largest value: kernels sum in another order, and in float32 what a reference may sum in the dtype itself.
BUDGETS = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}
MOMENTS = 2e-2  # of what is drawn at random, over as many elements as a case has


def leaves(value: Any) -> Iterator[Tensor]:
    """The tensors in what a callable takes or returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)


def fresh_arguments(case: Case, device: str) -> tuple[Any, ...]:
    """The same arguments at every call."""
    torch.manual_seed(0)
    return case.arguments(device)


def results(case: Case, work: Callable[..., Any], device: str, seed: int = 0) -> list[Tensor]:
    """What a callable returns for fresh arguments; where it returns nothing, what it made of them."""
    arguments = fresh_arguments(case, device)
    torch.manual_seed(1 + seed)  # not that of the arguments: a mask from the same numbers would depend on them
    with torch.no_grad():
        returned = work(*arguments)
    found = list(leaves(returned)) or list(leaves(arguments))
    return [tensor.detach() for tensor in found]


def gradients(case: Case, work: Callable[..., Any], device: str) -> list[Tensor]:
    """What can be compared of the gradients at fresh arguments, with fixed cotangents; empty where none is wanted."""
    backward = backward_of(case, work, device)
    return [] if backward is None else [case.determined(gradient) for gradient in backward() if gradient is not None]


def backward_of(case: Case, work: Callable[..., Any], device: str) -> Callable[[], tuple[Tensor | None, ...]] | None:
    """The backward of a callable alone: from fixed cotangents, over a graph that is kept."""
    arguments = fresh_arguments(case, device)
    wanted = [tensor for tensor in leaves(arguments) if tensor.requires_grad]
    outputs = [tensor for tensor in leaves(work(*arguments)) if tensor.requires_grad]
    if not wanted or not outputs:
        return None
    torch.manual_seed(1)
    cotangents = [cotangent(output) for output in outputs]
    return lambda: torch.autograd.grad(outputs, wanted, cotangents, retain_graph=True, allow_unused=True)


def cotangent(output: Tensor) -> Tensor:
    """Random numbers of an output's shape, the same in each layout and in each real dtype of at least 16 bits."""
    if output.is_complex():
        return torch.randn(output.shape, dtype=output.dtype, device=output.device)
    return torch.randn(output.shape, device=output.device).bfloat16().to(output.dtype)


def disagreement(case: Case, work: Callable[..., Any], device: str) -> str | None:
    """What a callable computes differently from the reference; None where it agrees."""
    expected, again = (results(case, case.reference, device, seed) for seed in (0, 1))
    compare = moments_differ if any(not torch.equal(a, b) for a, b in zip(expected, again, strict=True)) else differ
    problem = first_difference(results(case, work, device), expected, compare)
    if problem is not None or compare is moments_differ:  # the gradients of what is drawn follow another mask
        return problem and f"forward: {problem}"
    problem = first_difference(gradients(case, work, device), gradients(case, case.reference, device), differ)
    return problem and f"backward: {problem}"


def first_difference(
    found: list[Tensor], expected: list[Tensor], compare: Callable[[Tensor, Tensor], str | None]
) -> str | None:
    """What is wrong with the first tensor that differs; indices count only where there is nothing else."""
    if len(found) != len(expected):
        return f"{len(found)} tensors instead of {len(expected)}"
    pairs = list(zip(found, expected, strict=True))
    chosen = [(a, b) for a, b in pairs if b.is_floating_point() or b.is_complex()] or pairs  # ties have several orders
    return next((problem for a, b in chosen if (problem := compare(a, b))), None)


def differ(found: Tensor, expected: Tensor) -> str | None:
    """How far two tensors are apart, where that is too far."""
    if found.shape != expected.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    if not (expected.is_floating_point() or expected.is_complex()):
        return None if torch.equal(found, expected) else "other integers"
    same = (found == expected) | (found.isnan() & expected.isnan())  # infinities too
    distance = torch.where(same, 0, (found - expected).abs().double())
    finite = torch.where(expected.isfinite(), expected, 0)
    largest = finite.abs().max().item() if finite.numel() else 0.0
    real = found.real.dtype if found.is_complex() else found.dtype
    allowed = BUDGETS.get(real, 1e-3) * max(largest, 1e-3)
    farthest = distance.max().item() if distance.numel() else 0.0
    return None if farthest <= allowed else f"{farthest:.3g} apart, where {allowed:.3g} is allowed"


def moments_differ(found: Tensor, expected: Tensor) -> str | None:
    """How far mean and root mean square of what is drawn at random are apart, where that is too far."""
    if found.shape != expected.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    scale = expected.double().square().mean().sqrt().item()
    for name, moment in (("mean", torch.mean), ("mean square", lambda x: x.square().mean().sqrt())):
        distance = abs(moment(found.double()).item() - moment(expected.double()).item())
        if not distance <= MOMENTS * scale:
            return f"{name} {distance:.3g} apart, where {MOMENTS * scale:.3g} is allowed"
    return None
