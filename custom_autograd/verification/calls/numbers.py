"""Other numbers in a tensor: larger, smaller, equal, zero, not finite, reordered; no sign that it does not have."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def element(value: float) -> Callable[[Tensor], Tensor | None]:
    """Return what makes the element in the middle this number."""

    def change(tensor: Tensor) -> Tensor | None:
        if not tensor.numel() or (tensor.is_complex() and not math.isfinite(value)):
            return None
        found = tensor.clone(memory_format=torch.contiguous_format)
        found.view(-1)[tensor.numel() // 2] = value
        return found

    return change


def last_row(value: float) -> Callable[[Tensor], Tensor | None]:
    """Return what makes the last row this number."""

    def change(tensor: Tensor) -> Tensor | None:
        if tensor.dim() < 2 or not tensor.numel() or (tensor.is_complex() and not math.isfinite(value)):
            return None
        found = tensor.clone(memory_format=torch.contiguous_format)
        found.view(-1, tensor.shape[-1])[-1] = value
        return found

    return change


def constant_rows(tensor: Tensor) -> Tensor | None:
    """Return the first number of each row for the whole row."""
    return tensor[..., :1].expand_as(tensor).contiguous() if tensor.dim() and tensor.numel() else None


def large(tensor: Tensor) -> Tensor:
    """Return numbers a thousand times as large; in half precision, as large as squares of them may be."""
    return tensor * (300 if tensor.dtype in (torch.float16, torch.bfloat16) else 1000)


def shuffled(tensor: Tensor) -> Tensor:
    """Return the numbers in another order."""
    order = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(tensor.numel()))
    return tensor.reshape(-1)[order.to(tensor.device)].reshape(tensor.shape)


SMALL = ("a thousandth as large", "a millionth as large")

NOT_FINITE = ("with a nan", "with an inf", "with a -inf", "with a row of -inf")

VALUE_CHANGES: tuple[tuple[str, Callable[[Tensor], Tensor | None], bool], ...] = (
    ("20 times as large", lambda x: x * 20, True),
    ("1000 times as large", large, True),
    ("a thousandth as large", lambda x: x * 1e-3, True),
    ("a millionth as large", lambda x: x * 1e-6, True),
    ("zero", torch.zeros_like, True),
    ("rounded, with ties", lambda x: None if x.is_complex() else x.round(), True),
    ("constant in each row", constant_rows, False),
    ("with a row of zeros", last_row(0.0), False),
    ("with one zero", element(0.0), False),
    ("in another order", shuffled, False),
    ("with one that is 1000", element(1000.0), False),
    ("with a nan", element(float("nan")), False),
    ("with an inf", element(float("inf")), False),
    ("with a -inf", element(float("-inf")), False),
    ("with a row of -inf", last_row(float("-inf")), False),
)
"""Text, change, and whether it is also made to all tensors together. No sign appears that a tensor does not have."""

OF_ALL = tuple(text for text, _, is_whole in VALUE_CHANGES if is_whole)


def equal_neighbors(tensor: Tensor) -> Tensor | None:
    """Return offsets with an empty segment in the middle, or keys of which one comes twice."""
    if tensor.numel() < 3:
        return None
    found = tensor.clone(memory_format=torch.contiguous_format)
    flat = found.view(-1)
    flat[tensor.numel() // 2] = flat[tensor.numel() // 2 - 1]
    return found


def all_first(tensor: Tensor) -> Tensor:
    """Return the first number for each."""
    return tensor.reshape(-1)[:1].expand(tensor.numel()).reshape(tensor.shape).contiguous()


MASKS: tuple[tuple[str, Callable[[Tensor], Tensor | None]], ...] = (
    ("all True", torch.ones_like),
    ("all False", torch.zeros_like),
    ("with a row of False", last_row(0.0)),
    ("inverted", torch.logical_not),
)
