"""Never run: what type checkers are to find out about the public face."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import assert_type

from custom_autograd import CustomOp, Report, Sample, check, custom_op


class Pair(NamedTuple):
    """What an op may return."""

    first: Tensor
    second: Tensor


@custom_op("typed::scale")
def scale(x: Tensor, n: int = 2, *, s: float = 1.5) -> Tensor:
    """One output."""
    return x * n * s


@custom_op("typed::pair", mutates_args=(), device_types="cpu", tags=(), non_differentiable=("n",))
def pair(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Two outputs."""
    return x * n, x


@custom_op("typed::named")
def named(x: Tensor) -> Pair:
    """A NamedTuple."""
    return Pair(x, x)


@custom_op("typed::hidden", outputs=("out", "rstd"), hidden=("rstd",))
def hidden(x: Tensor) -> tuple[Tensor, Tensor]:
    """One visible output: what a call returns is not what the function does."""
    return x, x


def write(x: Tensor) -> None:
    """Writes."""


write_ = custom_op("typed::write_", write, mutates_args=("x",))


def calls(x: Tensor) -> None:
    """A call is typed like the function."""
    assert_type(scale(x), Tensor)
    assert_type(scale(x, 3, s=2.0), Tensor)
    assert_type(pair(x, 3), tuple[Tensor, Tensor])
    assert_type(named(x).second, Tensor)
    assert_type(hidden(x), Any)
    write_(x)


def wrong_calls(x: Tensor) -> None:
    """A wrong call is found: the ignores are themselves errors where nothing is wrong (warn_unused_ignores)."""
    scale()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    scale(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    scale(x, t=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    scale(x, 2, 1.5)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    pair(x, "3")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def handles(op: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """An op is a callable of its own type."""
    handles(scale, x)
    assert_type(scale.name, str)
    assert_type(scale.source, str)
    assert_type(scale.kernels, dict[str, str])
    assert_type(scale.capabilities(), dict[str, str])
    assert_type(scale.inplace(x, 2), Tensor)
    assert_type(scale.inplace.kernels, dict[str, str])
    assert_type(scale.out.check(), Report)
    assert_type(scale.function, type[torch.autograd.Function])
    assert_type(scale.check([Sample(x)], checks=["gradcheck"]), Report)
    assert_type(check(scale, [Sample(x)]), Report)
    assert_type(scale.schema.argument_names, tuple[str, ...])


def anything(op: CustomOp[..., Any]) -> str:
    """An op of which nothing more is known."""
    return op.name


@scale.register_kernel("cpu")
def scale_cpu(x: Tensor, n: int, *, s: float) -> Tensor:
    """A decorator gives the function back."""
    return x * n * s


@scale.register_backward
def scale_backward(grad: Tensor, n: int, s: float) -> dict[str, Tensor]:
    """A decorator without arguments."""
    return {"x": grad * n * s}


@pair.register_backward(once_differentiable=True, materialize_grads=False)
def pair_backward(grad_output_0: Tensor | None, n: int) -> Tensor | None:
    """A decorator with arguments."""
    return None if grad_output_0 is None else grad_output_0 * n


@hidden.register_grad("x")
def hidden_x(grad: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of one input."""
    return grad * rstd


@scale.register_fake
def scale_fake(x: Tensor, n: int = 2, *, s: float = 1.5) -> Tensor:
    """A fake."""
    return torch.empty_like(x)


scale.register_autocast("cpu", torch.bfloat16)
scale.register_autocast("cuda", {"x": "lower"}, output="input")
pair.register_autocast("cpu", "lower", output={"output_0": torch.float32}, replace=True)
with scale.set_kernel_enabled("cpu", False):
    pass

assert_type(hidden_x(torch.ones(1), torch.ones(1)), Tensor)
