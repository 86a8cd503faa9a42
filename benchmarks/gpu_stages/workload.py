"""Makes what a case is measured by: calls without gradients, and backward passes over a graph that is kept."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch

from agreement import backward_of, fresh_arguments

Works = Mapping[str, Callable[..., Any]]


def forward_works(works: Works, case: Any, device: str) -> dict[str, Callable[[], Any]]:
    """Return calls of all with the same arguments."""
    arguments = fresh_arguments(case, device)
    return {name: lambda work=work: work(*arguments) for name, work in works.items()}


def backward_works(works: Works, case: Any, device: str) -> dict[str, Callable[[], Any]]:
    """Return the backward passes of those that have one."""
    found = {name: backward_of(case, work, device) for name, work in works.items()}
    return {name: backward for name, backward in found.items() if backward is not None}


def free_memory() -> None:
    """Give memory back to the device, for other processes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def first_line(error: BaseException) -> str:
    """Return the type of an error and its first line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
