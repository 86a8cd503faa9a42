"""Integers whose products need more than 32 bits, where nothing of their size is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import Watch, fake_mode
from custom_autograd.verification.calls.call_arguments import value_of, with_value
from custom_autograd.verification.harness.sweeps import is_index
from custom_autograd.verification.harness.targets import Target, call_on

FACTOR = 2**17 - 1
"""A product of two exceeds 32 bits; of three, it fits into 64."""


def large(target: Target, sample: Sample) -> Iterator[tuple[str, Callable[[Sample], Sample | None]]]:
    """Yield the call with its int64 tensors, and then its other integers too, made large."""
    if any(x.dtype == torch.int64 and is_index(x) for x in sample.tensors()):
        text = f"integers {FACTOR} times as large"
        yield f"{text}, in tensors", partial(_scaled, target, with_numbers=False)
        yield text, partial(_scaled, target, with_numbers=True)


def _scaled(target: Target, sample: Sample, *, with_numbers: bool) -> Sample | None:
    if any(x.numel() and int(x.abs().max()) > FACTOR for x in sample.tensors() if x.dtype == torch.int64):
        return None
    found = sample.map(lambda x: x * FACTOR if x.dtype == torch.int64 and is_index(x) else x)
    for row in target.arguments if with_numbers else ():
        if row.name not in sample.kept:
            found = with_value(target, found, row.name, _larger(value_of(target, found, row.name)))
    return found if _are_numbers(target, found) else None


def _larger(value: object) -> object:
    if type(value) is int:
        return value * FACTOR
    return [_larger(item) for item in value] if isinstance(value, list) and not Sample(value).tensors() else value


def _are_numbers(target: Target, sample: Sample) -> bool:
    """Return True if the reference only computes with the integers: no size, no position and no branch depends on them.

    Other integers are never made larger: with them a kernel would read memory that is not its own.
    """
    assert target.visible_reference is not None
    try:
        with torch.no_grad(), fake_mode() as to_fake, Watch(_refuse):
            call_on(target.visible_reference, sample.map(to_fake))
    except Exception:  # noqa: BLE001 - whatever it raises: it does not take such integers, or they decide a size
        return False
    return True


MOST = 2**22
"""Elements of a tensor that the reference makes."""


POINTING = ("index", "gather", "segment", "scatter", "embedding", "take", "_local_scalar_dense")
"""Parts of the names of what uses integers as positions, or reads them."""


def _refuse(function: object, args: object, kwargs: object, found: object) -> None:
    """Raise where integers may be positions, and where a tensor of more than `MOST` elements is made."""
    del args, kwargs
    made = found if isinstance(found, (list, tuple)) else (found,)
    if any(part in str(function) for part in POINTING):
        raise IndexError
    if any(isinstance(x, Tensor) and x.numel() > MOST for x in made):
        raise MemoryError
