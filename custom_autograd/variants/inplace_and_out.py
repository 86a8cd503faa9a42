"""`op.inplace(x, ...)` writes into the first argument, `op.out(..., out=tensor)` into tensors of the caller."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import quote, show
from custom_autograd.schema.schema import INPLACE, OUT, out_names
from custom_autograd.variants.copying import fits, refuse_shared_targets, write_in_place, write_out
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


class OutVariant(Variant):
    """`op.out(..., out=tensor)`: the results are written into tensors of the caller, which are returned."""

    kind = OUT

    def __call__(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Call the op, and write its results.

        Args:
            args: as of the op.
            out: the tensor to write to, or one per output; those may also be given under the names of the outputs.
            kwargs: as of the op.

        Returns:
            What was written to.

        Raises:
            KernelError: a result does not fit into its tensor: another shape (an empty tensor is resized) or device,
                or a dtype that cannot be cast.
            GradientError: a tensor requires a gradient, and grad mode is on.
        """
        self.refuse_if_impossible()
        names = out_names(self.op.declaration.schema)
        given = {name: kwargs.pop(name) for name in names if name in kwargs}
        if out is not None:
            several = out if isinstance(out, (tuple, list)) else (out,)
            given = dict(zip(names, several, strict=True)) if len(several) == len(names) and not given else {}
        if len(given) != len(names):
            raise self._missing(names)
        if torch.compiler.is_dynamo_compiling():  # elsewhere whatever runs can look at addresses
            refuse_shared_targets(self.op, given)
        return self._call(args, {**kwargs, **given})

    def _missing(self, names: tuple[str, ...]) -> KernelError:
        is_one = len(names) == 1
        return KernelError(
            f"{self.op.name}.out",
            "the call does not say where each output is to be written",
            expected="out=tensor" if is_one else f"out= {len(names)} tensors, or by keyword {quote(names)}",
            declared=self.op.declaration.location,
            do="give one tensor per output",
        )

    def _compose(self, /, *args: Any, **kwargs: Any) -> Any:
        schema = self.op.declaration.schema
        names = out_names(schema)
        targets = {name: kwargs[name] for name in names}
        write_out(
            self.op, self._call_op, targets, args, {name: value for name, value in kwargs.items() if name not in names}
        )
        if len(names) == 1:
            return targets[names[0]]
        if schema.named_tuple is not None and not schema.hidden_outputs:
            return schema.named_tuple(*targets.values())
        return tuple(targets.values())

    def _guarded(self, function: F) -> F:
        names = out_names(self.op.declaration.schema)

        @functools.wraps(function)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            targets = [kwargs[name] for name in names]
            rest = {name: value for name, value in kwargs.items() if name not in names}
            if fits(targets, self._expected.find(args, rest), [*args, *rest.values()]):
                return function(*args, **kwargs)
            return self._compose(*args, **kwargs)

        return typing.cast(F, kernel)
