"""Where PyTorch's transforms and forward mode refuse a custom op or forget its derivative, they do not here."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd import GradientError, custom_op


def numpy_of(x):
    return x.detach().numpy()


def vector():
    return torch.rand(3, dtype=torch.float64)


# -------------------------------------------------------------------------- T02: a tangent is never silently zero


@custom_op("ttraps::opaque_backward")
def opaque_backward(x: Tensor) -> Tensor:
    return torch.from_numpy(np.square(numpy_of(x)))


@opaque_backward.register_backward
def _(grad, x):
    return torch.from_numpy(2 * numpy_of(grad) * numpy_of(x))


@custom_op("ttraps::no_rule")
def no_rule(x: Tensor) -> Tensor:
    return torch.from_numpy(np.square(numpy_of(x)))


@custom_op("ttraps::write_", mutates_args=("x",))
def write_(x: Tensor) -> None:
    numpy_of(x).__imul__(2)


def _jvp(op, x):
    return torch.func.jvp(op, (x,), (torch.ones_like(x),))[1]


def _dual(op, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(op(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


FORWARD = pytest.mark.parametrize("forward", [_jvp, _dual], ids=["torch.func.jvp", "dual level"])


@FORWARD
def test_a_backward_outside_autograd_gives_no_forward_mode_and_says_so(forward):
    with pytest.raises(RuntimeError) as caught:
        forward(opaque_backward, vector())

    notes = [*getattr(caught.value, "__notes__", ()), str(caught.value.__cause__), str(caught.value)]
    assert any("ttraps::opaque_backward" in note for note in notes)


@FORWARD
def test_no_rule_at_all_gives_no_forward_mode_and_says_so(forward):
    with pytest.raises(GradientError, match="register_jvp"):
        forward(no_rule, vector())


@FORWARD
def test_a_write_without_a_rule_gives_no_forward_mode_and_says_so(forward):
    def f(x):
        y = x * 1
        write_(y)
        return y

    with pytest.raises(GradientError, match="which would be wrong"):
        forward(f, vector())


# ------------------------------------------------------------------------------------------- T03: batched gradients


@custom_op("ttraps::double")
def double(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy_of(x) * 2)


@double.register_backward
def _(grad):
    return double(grad)


@double.register_vmap
def _(info, in_dims, x):
    return double(x), in_dims[0]


def test_batched_gradients_are_right_by_value():
    x = vector().requires_grad_()
    y = double(x)
    (found,) = torch.autograd.grad(y, x, torch.eye(3, dtype=x.dtype), is_grads_batched=True)

    assert torch.equal(2 * torch.eye(3, dtype=x.dtype), found)
