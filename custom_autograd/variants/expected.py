"""What an op would return, without data: a kernel of a variant runs only where it fits the tensors it writes to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.registration.registry import OpRecord

Metadata: TypeAlias = tuple[tuple[torch.Size, torch.dtype], ...]
MOST = 256  # calls that are remembered for each variant


class Expected:
    """The shapes and dtypes of one op's visible outputs, by what it is called with."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._known: dict[Hashable, Metadata | None] = {}

    def find(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Metadata | None:  # Any: the op's arguments
        """Return shape and dtype of each visible output, or None if they depend on data.

        Raises:
            KernelError: there is neither a fake nor a reference that could tell.
        """
        rule = self._record.registrations.fake
        function = self._record.reference() if rule is None else rule.function
        if function is None:
            raise self._missing()
        key = (function, _key(args), _key(tuple(kwargs.items())))
        try:
            return self._known[key]
        except KeyError:
            pass
        except TypeError:  # an argument cannot be hashed
            return self._ask(function, args, kwargs)
        if len(self._known) >= MOST:
            self._known = {}
        found = self._known[key] = self._ask(function, args, kwargs)
        return found

    def _ask(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Metadata | None:
        try:
            with torch.no_grad():
                result = function(*_without_data(args), **{k: _without_data(value) for k, value in kwargs.items()})
        except Exception:  # noqa: BLE001 - a fake that needs data says so with any error; the op itself then runs
            return None
        outputs = self._record.declaration.schema.outputs
        results = result if isinstance(result, (tuple, list)) else (result,)
        if len(results) != len(outputs) or not all(isinstance(one, Tensor) for one in results):
            return None
        pairs = zip(outputs, results, strict=True)
        return tuple((one.shape, one.dtype) for output, one in pairs if not output.is_hidden)

    def _missing(self) -> KernelError:
        return KernelError(
            self._record.name,
            "a kernel of a variant runs only where the result fits, and nothing tells the shape of the result",
            expected="a fake or a reference of the op",
            declared=self._record.declaration.location,
            do="register_fake for the op",
        )


def _key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_key, value))
    return type(value), value


def _without_data(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_without_data(item) for item in value]
    return value
