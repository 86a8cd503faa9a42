"""triton_op: the counterpart of `torch.library.triton_op`."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from torch.library import wrap_triton as wrap_triton

from custom_autograd.kernels.launches import are_recorded
from custom_autograd.op import CustomOp, custom_op
from custom_autograd.torch_private.compiler import launching_directly

P = ParamSpec("P")
R = TypeVar("R")


@typing.overload
def triton_op(
    name: str, fn: None = None, /, *, mutates_args: str | Iterable[str] = (), schema: str | None = None
) -> Callable[[Callable[P, R]], CustomOp[P, R]]: ...
@typing.overload
def triton_op(
    name: str, fn: Callable[P, R], /, *, mutates_args: str | Iterable[str] = (), schema: str | None = None
) -> CustomOp[P, R]: ...
def triton_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    schema: str | None = None,
) -> Any:  # Any: the overloads say what
    """Declare an op that consists of PyTorch operations and launches of Triton kernels, which compiled graphs hold.

    It is `custom_op`, with the function registered as `register_kernel(None, fn, inline=True)`: compilers see what it
    does in place of the op, and it serves as the fake. An exported program keeps the op.

    Args:
        name: "namespace::name".
        fn: the function; leave it out to use this as a decorator. It launches a kernel of `triton.jit` as
            `wrap_triton(kernel)[grid](...)`, and one of `custom_autograd.kernels.triton_kernel` as it is.
        mutates_args: as in `custom_op`.
        schema: as in `custom_op`.

    Returns:
        The op, or a decorator that makes it.

    Raises:
        DeclarationError: the declaration cannot be an op, or the name is taken.

    Example:
        >>> import torch
        >>> from torch import Tensor
        >>> @triton_op("docs::doubled")
        ... def doubled(x: Tensor) -> Tensor:
        ...     return x * 2
        >>> doubled(torch.ones(2))
        tensor([2., 2.])
    """

    def decorate(function: Callable[..., Any]) -> CustomOp[..., Any]:
        @functools.wraps(function)
        def kernel(*args: Any, **kwargs: Any) -> Any:  # Any: what the schema declares
            if are_recorded():
                return function(*args, **kwargs)
            with launching_directly():
                return function(*args, **kwargs)

        op: CustomOp[..., Any] = custom_op(name, kernel, mutates_args=mutates_args, schema=schema)
        op.register_kernel(None, kernel, inline=True, replace=True)
        return op

    return decorate if fn is None else decorate(fn)
