"""Reads what a jvp rule returned, one tangent per result, and gives the tangents of an op memory of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.core.messages import advise, advise_derivative, explicit_none, quote
from custom_autograd.core.metadata import is_same_shape
from custom_autograd.execution.plan import Plan
from custom_autograd.registration.declaration import Declaration
from custom_autograd.schema.named_tuples import in_order_of
from custom_autograd.torch_private.storages import storages_of
from custom_autograd.values.tensors import tensors_in

ByName = Mapping[str, Any]  # Any: tensors, lists of tensors, metadata and other values, by name


class TangentReader:
    """Reads the results of one jvp rule."""

    def __init__(self, plan: Plan) -> None:
        self.declaration = plan.declaration
        self._error = partial(
            plan.declaration.origin(None if plan.jvp is None else plan.jvp.where).error, GradientError
        )
        self.results = [result.name for result in plan.declaration.schema.differentiable_results]
        self.visible = list(plan.declaration.schema.visible_results)

    def read(self, result: Any, metadata: ByName) -> dict[str, Any]:
        """Return the jvp rule's result by name."""
        found = self._by_name(result, [name for name in self.visible if not _is_integer(metadata[name])])
        for name, tangent in found.items():
            for one, known in zip(flat(tangent, keep_none=True), flat(metadata[name], keep_none=True), strict=False):
                if one is None:
                    continue
                if not isinstance(one, Tensor):
                    raise self._error(
                        f"the tangent of '{name}' is not a tensor",
                        expected="a tensor or None",
                        found=type(one).__name__,
                        do=advise_derivative(one),
                    )
                if not _can_differ(known.dtype):
                    raise self._error(
                        f"the jvp returns a tangent for '{name}', whose dtype cannot have one",
                        found=f"an output of {known.dtype}",
                        do=f"leave '{name}' out, or return '{name}': None",
                    )
                if one.dtype != known.dtype or not is_same_shape(one.shape, known.shape):
                    raise self._error(
                        f"the tangent of '{name}' does not match the output",
                        expected=f"{tuple(known.shape)}, {known.dtype}",
                        found=f"{tuple(one.shape)}, {one.dtype}",
                    )
        return found

    def _by_name(self, result: Any, needed: list[str]) -> dict[str, Any]:
        """Return a rule's result by name; integers, which are not in `needed`, may be left out."""
        if isinstance(result, Mapping):
            return self._checked_names(dict(result), needed)
        if isinstance(result, tuple):
            names = needed if len(result) == len(needed) else self.visible
            result = in_order_of(names, result, self._refuse, prefixes=("tangent_",))
            self._check_order(names)
            if len(result) != len(names):
                raise self._error(
                    "the jvp returns the wrong number of tangents",
                    expected=f"{len(needed)}: {quote(needed)}",
                    found=str(len(result)),
                )
            return dict(zip(names, result, strict=True))
        names = needed or self.visible
        if result is None and needed:
            self._refuse(
                "returns None",
                expected=f"a dict or a tuple for {quote(names)}",
                found="None",
                do=f"is a return missing? if the tangent is zero, {explicit_none(names)}",
            )
        if len(names) != 1:
            raise self._error(
                "the jvp returns one tangent for several outputs",
                expected=f"a dict or a tuple for {quote(names)}",
                found=type(result).__name__,
            )
        return {names[0]: result}

    def _refuse(self, problem: str, **facts: str) -> NoReturn:
        raise self._error(f"the jvp {problem}", **facts)

    def _check_order(self, names: list[str]) -> None:
        """Refuse a tuple of tangents where a call returns the same results in another order than their names have."""
        returned = [output.alias_of or output.name for output in self.declaration.schema.outputs]
        returned = [name for name in returned if name in names]
        if returned != [name for name in names if name in returned]:
            raise self._error(
                "the jvp returns a tuple, and the op returns what it writes to in an order of its own",
                expected=f"a dict by name: {quote(names)}",
                found="a tuple",
                do="return a dict by name",
            )

    def _checked_names(self, found: dict[str, Any], needed: list[str]) -> dict[str, Any]:
        for name in found:
            if name not in self.results:
                raise self._error(
                    f"the jvp returns a tangent for {name!r}, which is not a differentiable output",
                    expected=quote(self.results),
                    do=advise(name, self.results),
                )
        for name in needed:
            if name not in found:
                raise self._error(
                    f"the tangent of '{name}' is missing",
                    expected=f"an entry '{name}'",
                    found=f"entries {quote(found)}",
                    do=f"where it is zero, return '{name}': None",
                )
        return found


def flat(value: Any, *, keep_none: bool = False) -> list[Any]:  # Any: a tensor, None, or a list of those
    """Return the tensors of a result: one, or those of a list."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values if keep_none else [one for one in values if one is not None]


def _is_integer(metadata: Any) -> bool:
    """Return True if an output of a call consists of tensors that cannot have tangents."""
    known = flat(metadata, keep_none=True)
    return bool(known) and all(one is not None and not _can_differ(one.dtype) for one in known)


def _can_differ(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


# Gives the tangents of an op memory of their own, as PyTorch's formulas do.
#
# NOTE [tangents are written in place]
# A write to a dual tensor writes to its tangent as well. A rule that passes its gradient on makes the derived tangent
# of the output the tangent of the input, the same object: a write to either tensor would change the tangent of both. So
# a tangent that shares memory with an input's tangent, or with another output's, is copied. The output of an op that
# returns a view shares its values with the input, so its tangent has to be a view, too: writes reach both.


class TangentMemory:
    """Separates the tangents of one op. Made once per plan; holds nothing of a call."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.viewed = {output.name: output.alias_of for output in declaration.schema.outputs if output.is_view}

    def separate(self, tangents: ByName, given: ByName) -> dict[str, Any]:
        """Return the tangents of an op, with copies of those that share memory."""
        taken: set[int] = set()
        for tensor in tensors_in(list(given.values())):
            taken |= storages_of(tensor) or set()
        return {name: self._one(name, tangent, given, taken) for name, tangent in tangents.items()}

    def _one(self, name: str, tangent: Any, given: ByName, taken: set[int]) -> Any:
        if isinstance(tangent, (list, tuple)):
            return [self._one(name, one, given, taken) for one in tangent]
        if not isinstance(tangent, Tensor):
            return tangent
        if name in self.viewed:
            of = tensors_in([given.get(self.viewed[name] or "")])
            if not any((storages_of(tangent) or set()) & (storages_of(one) or set()) for one in of):
                self._refuse(name, self.viewed[name])
            return tangent
        storages = storages_of(tangent)
        if storages is not None and storages.isdisjoint(taken):
            taken |= storages
            return tangent
        return tangent.clone()

    def _refuse(self, name: str, source: str | None) -> NoReturn:
        """Refuse a tangent that a write to the view, or to its input, would not reach."""
        raise self.declaration.error(
            GradientError,
            f"the output '{name}' is a view of '{source}', and its tangent is not a view of the tangent of '{source}'",
            expected=f"the same view, of the tangent of '{source}'",
            found="a tensor with memory of its own",
            do=f"register_jvp a rule that returns that view of 'tangent_{source}', or have a reference and no "
            "gradient rules",
        )
