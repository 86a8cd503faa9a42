"""Gives the tangents of an op memory of their own, as PyTorch's formulas do.

NOTE [tangents are written in place]
A write to a dual tensor writes to its tangent as well. A rule that passes its gradient on makes the derived tangent of
the output the tangent of the input, the same object: a write to either tensor would change the tangent of both. So a
tangent that shares memory with an input's tangent, or with another output's, is copied.
The output of an op that returns a view shares its values with the input, so its tangent has to be a view, too: writes
reach both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private.storages import storages_of
from custom_autograd.values.tensors import tensors_in

ByName = Mapping[str, Any]  # Any: tensors, lists of tensors, or None


class TangentMemory:
    """Separates the tangents of one op. Made once per plan; holds nothing of a call."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.viewed = {output.name: output.alias_of for output in declaration.schema.outputs if output.is_view}

    def separate(self, tangents: ByName, given: ByName) -> dict[str, Any]:
        """Return the tangents of an op, with copies of those that share memory.

        Args:
            tangents: by result, as the rules returned them.
            given: by input, its tangent.

        Raises:
            GradientError: the op returns a view, and its tangent is not a view of the tangent of the input.
        """
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
            self._check_view(name, tangent, given.get(self.viewed[name] or ""))
            return tangent
        storages = storages_of(tangent)
        if storages is not None and storages.isdisjoint(taken):
            taken |= storages
            return tangent
        return tangent.clone()

    def _check_view(self, name: str, tangent: Tensor, of: Any) -> None:
        """Refuse a tangent that a write to the view, or to its input, would not reach."""
        if not any((storages_of(tangent) or set()) & (storages_of(one) or set()) for one in tensors_in([of])):
            self._refuse(name, self.viewed[name])

    def _refuse(self, name: str, source: str | None) -> NoReturn:
        raise GradientError(
            str(self.declaration.name),
            f"the output '{name}' is a view of '{source}', and its tangent is not a view of the tangent of '{source}'",
            expected=f"the same view, of the tangent of '{source}'",
            found="a tensor with memory of its own",
            declared=self.declaration.location,
            do=f"register_jvp a rule that returns that view of 'tangent_{source}', or have a reference and no "
            "gradient rules",
        )
