"""A tensor may be given for a number only if it carries no derivative: a number has none."""

from collections.abc import Sequence

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd import KernelError, custom_op


@custom_op("tensor_numbers::scale", reference=True)
def scale(x: Tensor, t: float = 1.0) -> Tensor:
    return x * t


@custom_op("tensor_numbers::converted", reference=True)
def converted(x: Tensor, t: float = 1.0, dims: tuple[int, ...] = (0,)) -> Tensor:
    return x * t


@custom_op("tensor_numbers::optional")
def optional(x: Tensor, t: int | None = None) -> Tensor:
    return x.clone() if t is None else x * t


@custom_op("tensor_numbers::listed")
def listed(x: Tensor, ts: list[float]) -> Tensor:
    return x * ts[0]


@custom_op("tensor_numbers::rotated")
def rotated(x: Tensor, t: complex | None = None) -> Tensor:
    return x.clone() if t is None else x * t.real


@custom_op("tensor_numbers::complex_listed")
def complex_listed(x: Tensor, ts: Sequence[complex]) -> Tensor:
    return x * ts[0].real


def dual(call):
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0)))


CALLS = {
    "a number": lambda t: scale(torch.ones(3), t),
    "beside a converted argument": lambda t: converted(torch.ones(3), t, (0,)),
    "an optional number": lambda t: optional(torch.ones(3), t),
    "a list of numbers": lambda t: listed(torch.ones(3), [t]),
    "a complex number": lambda t: rotated(torch.ones(3), t),
    "a list of complex numbers": lambda t: complex_listed(torch.ones(3), [t]),
}
CARRIED = {
    "gradient": lambda call: call(torch.tensor(2.0, requires_grad=True)),
    "dual tensor": dual,
    "func.grad": lambda call: torch.func.grad(lambda t: call(t).sum())(torch.ones(())),
    "jvp": lambda call: torch.func.jvp(call, (torch.ones(()),), (torch.ones(()),)),
    "vmap": lambda call: torch.vmap(call)(torch.ones(3)),
    "compile": lambda call: torch.compile(call, backend="eager")(torch.tensor(2.0, requires_grad=True)),
}


@each("carried", CARRIED)
@each("kind", CALLS)
def test_a_tensor_whose_derivative_would_be_lost_is_refused(kind, carried):
    with pytest.raises(KernelError, match="is a number, and the tensor given for it"):
        CARRIED[carried](CALLS[kind])


@each("kind", CALLS)
def test_a_tensor_without_derivative_is_a_number(kind):
    assert torch.equal(torch.full((3,), 2.0), CALLS[kind](torch.tensor(2)))
    with torch.no_grad():
        value = torch.tensor(2.0 if kind != "an optional number" else 2, requires_grad=kind != "an optional number")
        assert torch.equal(torch.full((3,), 2.0), CALLS[kind](value))


def test_the_message():
    assert_expected_inline(
        message(lambda: scale(torch.ones(3), torch.tensor(2.0, requires_grad=True))).removeprefix("KernelError: "),
        """\
tensor_numbers::scale: argument 't' is a number, and the tensor given for it requires a gradient: that would be lost
  declared   FILE.py:LINE
  do         declare 't: Tensor', or pass t.item()""",
    )
