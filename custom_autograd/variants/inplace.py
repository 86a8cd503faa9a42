"""`op.inplace(x, ...)`: the result is written into the first argument."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import show
from custom_autograd.core.variant_schemas import INPLACE
from custom_autograd.variants.copying import write_in_place
from custom_autograd.variants.fitting import fits
from custom_autograd.variants.variant import Variant

F = TypeVar("F", bound=Callable[..., Any])


class InplaceVariant(Variant):
    """`op.inplace(x, ...)`: the result is written into the first argument, which is returned."""

    kind = INPLACE

    def __call__(self, /, *args: Any, **kwargs: Any) -> Tensor:
        """Call the op, and write the result into its first argument.

        Returns:
            The first argument.

        Raises:
            KernelError: the result does not fit into it: another shape or device, or a dtype that cannot be cast.
            GradientError: it is a leaf that requires a gradient.
        """
        written: Tensor = self._call(args, kwargs)
        return written

    def _compose(self, /, *args: Any, **kwargs: Any) -> Tensor:
        name = self.op.declaration.schema.arguments[0].name
        given = args[0] if args else kwargs.get(name)
        if not isinstance(given, Tensor):
            raise KernelError(
                f"{self.op.name}.inplace",
                f"'{name}' is not a tensor to write to",
                expected="a tensor",
                found=show(given),
                declared=self.op.declaration.location,
            )
        return write_in_place(self.op, self._call_op, given, args, kwargs)

    def _guarded(self, function: F) -> F:
        @functools.wraps(function)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            if fits([args[0]], self._expected.find(args, kwargs), [*args[1:], *kwargs.values()]):
                return function(*args, **kwargs)
            return self._compose(*args, **kwargs)

        return typing.cast(F, kernel)
