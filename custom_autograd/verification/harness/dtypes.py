"""One sample -> the same call in other dtypes: every floating one, then complex and integer ones."""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
"""Without uint8: as an index it is a mask."""


def floating(sample: Sample) -> Iterator[tuple[torch.dtype, Sample]]:
    """Yield the call with its floating tensors in each floating dtype but their own; nothing where there is none."""
    given = {x.dtype for x in sample.tensors() if x.is_floating_point()}
    for dtype in FLOATING:
        if given and given != {dtype}:
            yield dtype, _with(sample, dtype, given)


def kinds(sample: Sample) -> Iterator[tuple[torch.dtype, Sample]]:
    """Yield the call with its floating and complex numbers made complex, then made integers, one dtype at a time."""
    given = {x.dtype for x in sample.tensors() if x.is_floating_point() or x.is_complex()}
    for dtype in (*COMPLEX, torch.int64, torch.int32):
        if given and given != {dtype}:
            yield dtype, _with(sample, dtype, given)


def integers(sample: Sample) -> Iterator[tuple[torch.dtype, Sample]]:
    """Yield the call with its integer tensors in each integer dtype that holds their numbers."""
    given = [x for x in sample.tensors() if x.dtype in INTEGERS]
    for dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        is_held = all(x.numel() == 0 or (int(x.min()) >= limits.min and int(x.max()) <= limits.max) for x in given)
        if given and is_held and {x.dtype for x in given} != {dtype}:
            yield dtype, _with(sample, dtype, {x.dtype for x in given})


def _with(sample: Sample, dtype: torch.dtype, given: Collection[torch.dtype]) -> Sample:
    """Return the call with the tensors of some dtypes in another one, and copies of all others."""
    return sample.map(lambda x: _cast(x, dtype) if x.dtype in given else x.detach().clone())


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor.detach().clone()
    found = tensor.detach()
    found = found.real if found.is_complex() and not dtype.is_complex else found
    return found.to(dtype, copy=True)
