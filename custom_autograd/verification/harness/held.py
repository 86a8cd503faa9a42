"""Tensors of a call that another argument holds too, such as a module, or a function that closes over one.

An adjoint is such a Function: `apply(f, y0, *f.parameters())`. Its forward may ignore the parameters that it is given,
and use those of `f`; then a call on copies of them is not the call that was meant.
"""

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.signatures import is_filled
from custom_autograd.schema.samples import PLAIN, Sample, children_of

MOST = 2000
"""Objects that are looked at for one call."""


def held_by_objects(sample: Sample) -> list[Tensor]:
    """Return the tensors among the arguments of a call that other objects among them hold."""
    given = {id(x): x for x in sample.tensors()}
    others = list(_without_tensors([*sample.args, *sample.kwargs.values()]))
    return [given[key] for key in _held(others) & given.keys()] if others and given else []


def _without_tensors(value: Any) -> Iterator[object]:  # Any: of any type
    """Yield what is neither a tensor nor a plain value, in containers too."""
    inside = [item for _, item in children_of(value)]
    if inside:
        for item in inside:
            yield from _without_tensors(item)
    elif not isinstance(value, (Tensor, *PLAIN, list, tuple, dict)):
        yield value


def _held(values: list[object]) -> set[int]:
    """Return the ids of all tensors that objects lead to, by attributes, items, cells and bound arguments."""
    found: set[int] = set()
    seen: dict[int, object] = {}
    while values and len(seen) < MOST:
        value = values.pop()
        if isinstance(value, Tensor):
            found.add(id(value))
        elif type(value) not in PLAIN and id(value) not in seen:
            seen[id(value)] = value
            values += _inside(value)
    return found


def _inside(value: Any) -> list[object]:  # Any: of any type
    if isinstance(value, torch.nn.Module):  # what comes last is looked at first, before a large one has used up MOST
        return [*vars(value).values(), *value.parameters(), *value.buffers()]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if is_filled(cell)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (set, frozenset)):
        return list(value)
    own = [] if isinstance(value, type) else getattr(value, "__dict__", {}).values()
    return [*(item for _, item in children_of(value)), *own]
