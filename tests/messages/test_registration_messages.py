"""What a registration is answered with when it does not fit."""

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from torch import Tensor

from custom_autograd import custom_op


@custom_op("words::rms_norm", outputs=("out", "rstd"), hidden=("rstd",))
def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    return x * weight, x


@custom_op("words::halves")
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x / 2, x / 2


@custom_op("words::full")
def full(n: int) -> Tensor:
    return torch.ones(n)


@custom_op("words::write_", mutates_args=("x",))
def write_(x: Tensor) -> None:
    x.add_(1)


def same(x, weight, *, eps):
    return x, x


@custom_op("words::filled")
def filled(x: Tensor) -> Tensor:
    return x * 1


filled.register_kernel("cpu", lambda x: x * 1)
filled.register_backward(lambda grad: grad)


def test_kernels():
    assert_expected_inline(
        together(
            message(lambda: rms_norm.register_kernel("cpu", lambda x, w: x)),
            message(lambda: rms_norm.register_kernel("cpu", lambda weight, x, *, eps: x)),
            message(lambda: rms_norm.register_kernel("gpu", same)),
            message(lambda: rms_norm.register_kernel("npu_of_tomorrow", same)),
            message(lambda: rms_norm.register_kernel("cuda:0", same)),
        ),
        """\
RegistrationError: words::rms_norm
  rule       FILE.py:LINE
  declared   FILE.py:LINE
the cpu kernel does not fit the schema: it does not take the keyword argument 'eps'
  expected   (x, weight, *, eps)
  found      (x, w)
  do         give it these parameters
the cpu kernel takes the op's arguments in another order
  expected   (x, weight)
  found      (weight, x)
  do         put the parameters in the order of the schema
torch has no device type 'gpu'
  expected   'cpu', 'cuda', 'mps', 'xpu', ...
  found      'gpu'
  do         did you mean 'cuda'? If not, import the package that makes the device type known to torch first
torch has no device type 'npu_of_tomorrow'
  expected   'cpu', 'cuda', 'mps', 'xpu', ...
  found      'npu_of_tomorrow'
  do         import the package that makes the device type known to torch first
a kernel serves every device of a type
  expected   a device type, such as 'cuda'
  found      'cuda:0'
  do         register it for 'cuda'; it runs with the device of its tensors as the current one""",
    )


def test_what_an_op_cannot_have():
    assert_expected_inline(
        together(
            message(lambda: full.register_kernel("cpu", lambda n: n)),
            message(lambda: write_.register_autograd(lambda ctx: None)),
            message(lambda: filled.register_backward(lambda grad: grad, surrogate=True)),
        ),
        """\
RegistrationError
  rule       FILE.py:LINE
  declared   FILE.py:LINE
words::full: an op without tensors cannot choose between devices
  expected   an argument 'device: torch.device'
  do         add one, or declare the op with device_types=None
words::write_: register_autograd cannot express an op that mutates
  do         use register_backward: there, grad_<input> is the gradient after the call
words::filled: surrogate= takes the reason why the gradient is not the derivative
  expected   a text
  found      True
  do         write surrogate='straight through: the derivative of round is taken to be 1'""",
    )


def test_second_rules():
    """For rules of every kind see tests/registration/test_registering.py."""
    assert_expected_inline(
        together(
            message(lambda: filled.register_kernel("cpu", lambda x: x)),
            message(lambda: filled.register_kernel(None, lambda x: x)),
            message(lambda: filled.register_autograd(lambda ctx, grad: grad)),
        ),
        """\
RegistrationError: words::filled
  declared   FILE.py:LINE
device type 'cpu' already has a kernel
  found      one at FILE.py:LINE, another at FILE.py:LINE
  do         pass replace=True to register_kernel if that is meant, or name= to have both
device type None already has a kernel
  found      one at FILE.py:LINE, another at FILE.py:LINE
  do         pass replace=True to register_kernel if that is meant, or name= to have both
the backward rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  do         pass replace=True if that is meant""",
    )


def test_parameters_of_rules():
    assert_expected_inline(
        together(
            message(lambda: rms_norm.register_fake(lambda x: x)),
            message(lambda: rms_norm.register_reference(lambda *, x, weight, eps: x)),
            message(lambda: rms_norm.register_vmap(lambda x: x)),
            message(lambda: rms_norm.register_backward(lambda grad, wieght: None)),
            message(lambda: rms_norm.register_backward(lambda grad, q: None)),
            message(lambda: rms_norm.register_backward(lambda ctx, grad: None)),
            message(lambda: rms_norm.register_jvp(lambda tangent_y: None)),
        ),
        """\
RegistrationError: words::rms_norm
  rule       FILE.py:LINE
  declared   FILE.py:LINE
the fake does not fit the schema: it takes 1 of 2 positional arguments
  expected   (x, weight, *, eps)
  found      (x)
  do         give it these parameters
the reference does not fit the schema: it takes 0 of 2 positional arguments
  expected   (x, weight, *, eps)
  found      (*, x, weight, eps)
  do         give it these parameters
the vmap rule does not fit the schema: it takes 1 of 4 positional arguments
  expected   (info, in_dims, x, weight, *, eps)
  found      (x)
  do         give it these parameters
the backward has a parameter 'wieght' that names nothing
  expected   'x', 'weight', 'eps', 'out', 'rstd', 'needs', 'meta', 'grad', 'grad_out', 'grad_rstd'
  found      'wieght'
  do         did you mean 'weight'?
the backward has a parameter 'q' that names nothing
  expected   'x', 'weight', 'eps', 'out', 'rstd', 'needs', 'meta', 'grad', 'grad_out', 'grad_rstd'
  found      'q'
  do         name an input, an output, or what else is listed
the backward has a parameter 'ctx' that names nothing
  expected   'x', 'weight', 'eps', 'out', 'rstd', 'needs', 'meta', 'grad', 'grad_out', 'grad_rstd'
  found      'ctx'
  do         rules bound by name take no ctx; for a (ctx, *grads) backward use register_autograd
the jvp has a parameter 'tangent_y' that names nothing
  expected   'x', 'weight', 'eps', 'out', 'rstd', 'needs', 'meta', 'tangent_x', 'tangent_weight'
  found      'tangent_y'
  do         did you mean 'tangent_x'?""",
    )


def test_what_is_no_function_and_what_is_no_name():
    assert_expected_inline(
        together(
            message(lambda: rms_norm.register_fake(3)),
            message(lambda: rms_norm.register_backward("rule")),
            message(lambda: rms_norm.register_grad()),
            message(lambda: rms_norm.register_grad(same)),
            message(lambda: rms_norm.register_grad("weihgt")),
            message(lambda: rms_norm.register_grad("eps")),
        ),
        """\
RegistrationError: words::rms_norm
  declared   FILE.py:LINE
the fake is not callable
  expected   a function
  found      3
the backward is not callable
  expected   a function
  found      'rule'
register_grad takes names of inputs
  expected   'x', 'weight'
  found      none
  do         write @op.register_grad('x')
register_grad takes names of inputs
  expected   'x', 'weight'
  found      function
  do         write @op.register_grad('x')
register_grad names 'weihgt', which is not a differentiable input
  expected   'x', 'weight'
  found      'weihgt'
  do         did you mean 'weight'?
register_grad names 'eps', which is not a differentiable input
  expected   'x', 'weight'
  found      'eps'
  do         name one of 'x', 'weight'""",
    )


def test_parameters_of_rules_for_several_results():
    assert_expected_inline(
        together(
            message(lambda: halves.register_backward(lambda grad: None)),
            message(lambda: halves.register_backward(lambda x, /: None)),
            message(lambda: halves.register_autograd(lambda ctx, grad: grad)),
            message(lambda: halves.register_autograd(lambda ctx, a, b: a, setup_context=lambda ctx: None)),
            message(lambda: halves.register_samples(lambda: None)),
            message(lambda: halves.register_torch_dispatch(Tensor, lambda func: None)),
            message(lambda: halves.register_torch_dispatch("Tensor", same)),
        ),
        """\
RegistrationError: words::halves
  rule       FILE.py:LINE
  declared   FILE.py:LINE
the backward has a parameter 'grad' that names nothing
  expected   'x', 'output_0', 'output_1', 'needs', 'meta', 'grad_output_0', 'grad_output_1'
  found      'grad'
  do         the op has several differentiable results: name their gradients, 'grad_output_0', 'grad_output_1'
the backward has a positional-only parameter 'x'
  expected   parameters that can be given by name
  do         remove the '/'
the backward does not fit the schema: it takes 2 of 3 positional arguments
  expected   (ctx, grad_output_0, grad_output_1)
  found      (ctx, grad)
  do         give it these parameters
the setup_context does not fit the schema: it takes 1 of 3 positional arguments
  expected   (ctx, inputs, output)
  found      (ctx)
  do         give it these parameters
the generator of samples does not fit the schema: it takes 0 of 1 positional arguments
  expected   (make)
  found      ()
  do         give it these parameters
the torch_dispatch rule does not fit the schema: it takes 1 of 5 positional arguments
  expected   (cls, func, types, args, kwargs)
  found      (func)
  do         give it these parameters
register_torch_dispatch takes a class
  expected   a subclass or a mode
  found      'Tensor'""",
    )


@pytest.mark.parametrize("effect", ["ORDERED", 1])
def test_an_effect_that_torch_does_not_have(effect):
    assert_expected_inline(
        message(lambda: filled.register_effect(effect)).replace(repr(effect), "EFFECT"),
        """\
RegistrationError: words::filled: register_effect takes an effect of torch, or None
  expected   EffectType.ORDERED or None
  found      EFFECT
  declared   FILE.py:LINE
  do         pass torch._library.effects.EffectType.ORDERED, which keeps the calls in order""",
    )
