"""What a registration is answered with when it does not fit."""

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
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
filled.register_fake(lambda x: x * 1)
filled.register_backward(lambda grad: grad)
filled.register_jvp(lambda tangent_x: tangent_x)
filled.register_vmap(lambda info, in_dims, x: (x, 0))
filled.register_samples(lambda make: ())
filled.register_autocast("cpu", torch.bfloat16)


def test_kernel_with_other_parameters():
    assert_expected_inline(
        message(lambda: rms_norm.register_kernel("cpu", lambda x, w: x)),
        """\
RegistrationError: words::rms_norm: the cpu kernel does not fit the schema: it does not take the keyword argument 'eps'
  expected   (x, weight, *, eps)
  found      (x, w)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_kernel_with_parameters_in_another_order():
    assert_expected_inline(
        message(lambda: rms_norm.register_kernel("cpu", lambda weight, x, *, eps: x)),
        """\
RegistrationError: words::rms_norm: the cpu kernel takes the op's arguments in another order
  expected   (x, weight)
  found      (weight, x)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         put the parameters in the order of the schema""",
    )


def test_kernel_for_an_unknown_device_type():
    assert_expected_inline(
        message(lambda: rms_norm.register_kernel("gpu", same)),
        """\
RegistrationError: words::rms_norm: torch has no device type 'gpu'
  expected   'cpu', 'cuda', 'mps', 'xpu', ...
  found      'gpu'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         did you mean 'cuda'? If not, import the package that makes the device type known to torch first""",
    )


def test_kernel_for_a_device_type_that_is_not_there_yet():
    assert_expected_inline(
        message(lambda: rms_norm.register_kernel("npu_of_tomorrow", same)),
        """\
RegistrationError: words::rms_norm: torch has no device type 'npu_of_tomorrow'
  expected   'cpu', 'cuda', 'mps', 'xpu', ...
  found      'npu_of_tomorrow'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         import the package that makes the device type known to torch first""",
    )


def test_kernel_for_one_device_of_a_type():
    assert_expected_inline(
        message(lambda: rms_norm.register_kernel("cuda:0", same)),
        """\
RegistrationError: words::rms_norm: a kernel serves every device of a type
  expected   a device type, such as 'cuda'
  found      'cuda:0'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         register it for 'cuda'; it runs with the device of its tensors as the current one""",
    )


def test_kernel_for_a_device_of_an_op_without_tensors():
    assert_expected_inline(
        message(lambda: full.register_kernel("cpu", lambda n: n)),
        """\
RegistrationError: words::full: an op without tensors cannot choose between devices
  expected   an argument 'device: torch.device'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         add one, or declare the op with device_types=None""",
    )


def test_second_kernel():
    assert_expected_inline(
        message(lambda: filled.register_kernel("cpu", lambda x: x)),
        """\
RegistrationError: words::filled: device type 'cpu' already has a kernel
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True to register_kernel if that is meant, or name= to have both""",
    )


def test_second_default_kernel():
    assert_expected_inline(
        message(lambda: filled.register_kernel(None, lambda x: x)),
        """\
RegistrationError: words::filled: device type None already has a kernel
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True to register_kernel if that is meant, or name= to have both""",
    )


def test_fake_with_other_parameters():
    assert_expected_inline(
        message(lambda: rms_norm.register_fake(lambda x: x)),
        """\
RegistrationError: words::rms_norm: the fake does not fit the schema: it takes 1 of 2 positional arguments
  expected   (x, weight, *, eps)
  found      (x)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_fake_that_is_no_function():
    assert_expected_inline(
        message(lambda: rms_norm.register_fake(3)),
        """\
RegistrationError: words::rms_norm: the fake is not callable
  expected   a function
  found      3
  declared   FILE.py:LINE""",
    )


def test_second_fake():
    assert_expected_inline(
        message(lambda: filled.register_fake(lambda x: x)),
        """\
RegistrationError: words::filled: the fake rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )


def test_reference_with_other_parameters():
    assert_expected_inline(
        message(lambda: rms_norm.register_reference(lambda *, x, weight, eps: x)),
        """\
RegistrationError: words::rms_norm: the reference does not fit the schema: it takes 0 of 2 positional arguments
  expected   (x, weight, *, eps)
  found      (*, x, weight, eps)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_backward_with_an_unknown_parameter():
    assert_expected_inline(
        message(lambda: rms_norm.register_backward(lambda grad, wieght: None)),
        """\
RegistrationError: words::rms_norm: the backward has a parameter 'wieght' that names nothing
  expected   'x', 'weight', 'eps', 'out', 'rstd', 'needs', 'meta', 'grad', 'grad_out', 'grad_rstd'
  found      'wieght'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         did you mean 'weight'?""",
    )


def test_backward_with_a_parameter_like_nothing_else():
    assert_expected_inline(
        message(lambda: rms_norm.register_backward(lambda grad, q: None)),
        """\
RegistrationError: words::rms_norm: the backward has a parameter 'q' that names nothing
  expected   'x', 'weight', 'eps', 'out', 'rstd', 'needs', 'meta', 'grad', 'grad_out', 'grad_rstd'
  found      'q'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         name an input, an output, or what else is listed""",
    )


def test_backward_with_a_ctx():
    assert_expected_inline(
        message(lambda: rms_norm.register_backward(lambda ctx, grad: None)),
        """\
RegistrationError: words::rms_norm: the backward has a parameter 'ctx' that names nothing
  expected   'x', 'weight', 'eps', 'out', 'rstd', 'needs', 'meta', 'grad', 'grad_out', 'grad_rstd'
  found      'ctx'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         rules bound by name take no ctx; for a (ctx, *grads) backward use register_autograd""",
    )


def test_backward_with_an_ambiguous_grad():
    assert_expected_inline(
        message(lambda: halves.register_backward(lambda grad: None)),
        """\
RegistrationError: words::halves: the backward has a parameter 'grad' that names nothing
  expected   'x', 'output_0', 'output_1', 'needs', 'meta', 'grad_output_0', 'grad_output_1'
  found      'grad'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         the op has several differentiable results: name their gradients, 'grad_output_0', 'grad_output_1'""",
    )


def test_backward_with_positional_parameters():
    assert_expected_inline(
        message(lambda: halves.register_backward(lambda x, /: None)),
        """\
RegistrationError: words::halves: the backward has a positional-only parameter 'x'
  expected   parameters that can be given by name
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         remove the '/'""",
    )


def test_backward_that_is_no_function():
    assert_expected_inline(
        message(lambda: halves.register_backward("rule")),
        """\
RegistrationError: words::halves: the backward is not callable
  expected   a function
  found      'rule'
  declared   FILE.py:LINE""",
    )


def test_second_backward():
    assert_expected_inline(
        message(lambda: filled.register_backward(lambda grad, x: grad * x)),
        """\
RegistrationError: words::filled: the backward rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )


def test_grad_beside_a_backward():
    assert_expected_inline(
        message(lambda: filled.register_grad("x")(lambda grad, x: grad * x)),
        """\
RegistrationError: words::filled: the backward rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )


def test_grad_of_nothing():
    assert_expected_inline(
        message(lambda: rms_norm.register_grad()),
        """\
RegistrationError: words::rms_norm: register_grad takes names of inputs
  expected   'x', 'weight'
  found      none
  declared   FILE.py:LINE
  do         write @op.register_grad('x')""",
    )


def test_grad_of_a_function():
    assert_expected_inline(
        message(lambda: rms_norm.register_grad(same)),
        """\
RegistrationError: words::rms_norm: register_grad takes names of inputs
  expected   'x', 'weight'
  found      function
  declared   FILE.py:LINE
  do         write @op.register_grad('x')""",
    )


def test_grad_of_an_unknown_input():
    assert_expected_inline(
        message(lambda: rms_norm.register_grad("weihgt")),
        """\
RegistrationError: words::rms_norm: register_grad names 'weihgt', which is not a differentiable input
  expected   'x', 'weight'
  found      'weihgt'
  declared   FILE.py:LINE
  do         did you mean 'weight'?""",
    )


def test_grad_of_an_input_without_one():
    assert_expected_inline(
        message(lambda: rms_norm.register_grad("eps")),
        """\
RegistrationError: words::rms_norm: register_grad names 'eps', which is not a differentiable input
  expected   'x', 'weight'
  found      'eps'
  declared   FILE.py:LINE
  do         name one of 'x', 'weight'""",
    )


def test_jvp_with_an_unknown_parameter():
    assert_expected_inline(
        message(lambda: rms_norm.register_jvp(lambda tangent_y: None)),
        """\
RegistrationError: words::rms_norm: the jvp has a parameter 'tangent_y' that names nothing
  expected   'x', 'weight', 'eps', 'out', 'rstd', 'needs', 'meta', 'tangent_x', 'tangent_weight'
  found      'tangent_y'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         did you mean 'tangent_x'?""",
    )


def test_second_jvp():
    assert_expected_inline(
        message(lambda: filled.register_jvp(lambda tangent_x: tangent_x)),
        """\
RegistrationError: words::filled: the jvp rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )


def test_vmap_with_other_parameters():
    assert_expected_inline(
        message(lambda: rms_norm.register_vmap(lambda x: x)),
        """\
RegistrationError: words::rms_norm: the vmap rule does not fit the schema: it takes 1 of 4 positional arguments
  expected   (info, in_dims, x, weight, *, eps)
  found      (x)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_second_vmap():
    assert_expected_inline(
        message(lambda: filled.register_vmap(lambda info, in_dims, x: x)),
        """\
RegistrationError: words::filled: the vmap rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )


def test_drop_in_with_other_parameters():
    assert_expected_inline(
        message(lambda: halves.register_autograd(lambda ctx, grad: grad)),
        """\
RegistrationError: words::halves: the backward does not fit the schema: it takes 2 of 3 positional arguments
  expected   (ctx, grad_output_0, grad_output_1)
  found      (ctx, grad)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_drop_in_beside_a_backward():
    assert_expected_inline(
        message(lambda: filled.register_autograd(lambda ctx, grad: grad)),
        """\
RegistrationError: words::filled: the backward rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )


def test_drop_in_for_a_writing_op():
    assert_expected_inline(
        message(lambda: write_.register_autograd(lambda ctx: None)),
        """\
RegistrationError: words::write_: register_autograd cannot express an op that mutates
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         use register_backward: there, grad_<input> is the gradient after the call""",
    )


def test_setup_context_with_other_parameters():
    assert_expected_inline(
        message(lambda: halves.register_autograd(lambda ctx, a, b: a, setup_context=lambda ctx: None)),
        """\
RegistrationError: words::halves: the setup_context does not fit the schema: it takes 1 of 3 positional arguments
  expected   (ctx, inputs, output)
  found      (ctx)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_torch_dispatch_for_what_is_no_class():
    assert_expected_inline(
        message(lambda: halves.register_torch_dispatch("Tensor", same)),
        """\
RegistrationError: words::halves: register_torch_dispatch takes a class
  expected   a subclass or a mode
  found      'Tensor'
  rule       FILE.py:LINE
  declared   FILE.py:LINE""",
    )


def test_torch_dispatch_with_other_parameters():
    assert_expected_inline(
        message(lambda: halves.register_torch_dispatch(Tensor, lambda func: None)),
        """\
RegistrationError: words::halves: the torch_dispatch rule does not fit the schema: it takes 1 of 5 positional arguments
  expected   (cls, func, types, args, kwargs)
  found      (func)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_samples_with_other_parameters():
    assert_expected_inline(
        message(lambda: halves.register_samples(lambda: None)),
        """\
RegistrationError: words::halves: the generator of samples does not fit the schema: it takes 0 of 1 positional arguments
  expected   (make)
  found      ()
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_second_samples():
    assert_expected_inline(
        message(lambda: filled.register_samples(lambda make: None)),
        """\
RegistrationError: words::filled: the samples rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )


def test_a_surrogate_without_a_reason():
    assert_expected_inline(
        message(lambda: filled.register_backward(lambda grad: grad, surrogate=True)),
        """\
RegistrationError: words::filled: surrogate= takes the reason why the gradient is not the derivative
  expected   a text
  found      True
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         write surrogate='straight through: the derivative of round is taken to be 1'""",
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
