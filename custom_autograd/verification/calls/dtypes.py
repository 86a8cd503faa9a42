"""Other dtypes than the sample's: of all floating tensors, and of one alone, as mixed precision makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample

Cast: TypeAlias = Callable[[Sample], "Sample | None"]
"""Casts tensors of a sample; None where they do not fit."""

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
BESIDE = (torch.bfloat16, torch.float64)
"""A narrower and a wider dtype than float32, for one tensor beside others."""


def of(sample: Sample) -> Iterator[tuple[torch.dtype, str, Cast]]:
    """Yield the dtypes that not all floating tensors have, in words too, and what casts them all."""
    given = {x.dtype for x in sample.tensors() if x.is_floating_point()}
    for dtype in FLOATING if given else ():
        if given != {dtype}:
            yield dtype, f"in {_text(dtype)}", partial(_all_cast, dtype=dtype)


def of_one(sample: Sample, names: Sequence[str]) -> Iterator[tuple[str, Cast]]:
    """Yield what is said of one of several floating tensors in a dtype that none has, and what casts it."""
    tensors = sample.tensors()
    floating = [i for i, x in enumerate(tensors) if x.is_floating_point()]
    given = {tensors[i].dtype for i in floating}
    for position in floating if len(floating) > 1 else ():
        for dtype in BESIDE:
            if dtype not in given:
                text = f"'{names[position]}' in {_text(dtype)}"
                yield text, partial(_one_cast, position=position, dtype=dtype)


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _all_cast(sample: Sample, dtype: torch.dtype) -> Sample | None:
    wide = dtype.to_complex()
    if dtype.itemsize < 4 and any(x.is_complex() for x in sample.tensors()):
        return None
    return sample.map(lambda x: x.detach().to(dtype if x.is_floating_point() else wide if x.is_complex() else x.dtype))


def _one_cast(sample: Sample, position: int, dtype: torch.dtype) -> Sample | None:
    tensors: list[Tensor] = [x.detach() for x in sample.tensors()]
    if not tensors[position].is_floating_point():
        return None
    tensors[position] = tensors[position].to(dtype)
    return sample.with_tensors(tensors)
