"""What a derivative is answered with when a rule is missing, or returns something wrong."""

# ruff: noqa: E501 - a message is as long as it is

import sys

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each

from custom_autograd import custom_op

SCHEMA = "(Tensor x, Tensor weight, int n=1) -> Tensor"
HIDDEN = "(Tensor x) -> (Tensor out, Tensor rstd)"
PAIR = "(Tensor x) -> (Tensor a, Tensor b)"


def rand(*shape):
    return torch.rand(*shape, dtype=torch.float64, requires_grad=True)


def linear(x, weight, n=1):
    return x @ weight.T


def both(x):
    return x * 1, x * 2


def returned(result):
    """A backward by name that returns something wrong, on (5, 4) and (3, 4)."""
    op = custom_op("words::linear", linear, schema=SCHEMA, replace=True)
    op.register_backward(result)
    return message(lambda: op(rand(5, 4), rand(3, 4)).sum().backward())


def returned_list(result):
    """The same for a list of two."""
    op = custom_op("words::total", lambda xs: xs[0] + xs[1], schema="(Tensor[] xs) -> Tensor", replace=True)
    op.register_backward(result)
    return message(lambda: op([rand(2), rand(2)]).sum().backward())


def dropped_in(result, schema="(Tensor x, int n) -> Tensor", args=(2,), kernel=lambda x, n: x * n, setup_context=None):
    """A backward of the drop-in half that returns something wrong."""
    op = custom_op("words::dropped_in", kernel, schema=schema, replace=True)
    op.register_autograd(result, setup_context=setup_context)
    return op(rand(2), *args).sum().backward


def dropped_in_list(result):
    op = custom_op("words::dropped_in_list", lambda xs: xs[0] + xs[1], schema="(Tensor[] xs) -> Tensor", replace=True)
    op.register_autograd(result)
    return op([rand(2), rand(2)]).sum().backward


def pushed(rule, schema=PAIR, kernel=both, **options):
    """A jvp that returns something wrong."""
    op = custom_op("words::pushed", kernel, schema=schema, replace=True, **options)
    if rule is not None:
        op.register_jvp(rule)
    return message(lambda: torch.func.jvp(op, (torch.ones(2),), (torch.ones(2),)))


def twice(op):
    x = rand(2)
    (gradient,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    return message(lambda: gradient.sum().backward())


def test_shape_that_was_broadcast():
    assert_expected_inline(
        returned(lambda grad, x, weight: {"x": grad @ weight, "weight": (grad.T @ x).expand(7, 3, 4)}),
        """\
GradientError: words::linear: the gradient of 'weight' has the wrong shape
  expected   (3, 4), the shape of 'weight'
  found      (7, 3, 4)
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         sum over dimension 0: 'weight' was broadcast there""",
    )


@each(
    "rule, do",
    [
        (
            lambda grad, x: (None, (grad.T @ x).expand(6, 7, 3, 4)),
            "sum over dimensions 0, 1: 'weight' was broadcast there",
        ),
        (
            lambda grad, x: (None, x.T @ grad),
            "the sizes are right but in another order: a transpose is missing or too many",
        ),
        (lambda grad, x: (None, (grad.T @ x).flatten()), "reshape it to the shape of 'weight'"),
        (lambda grad: (grad.sum(), None), "make it as large as 'x'"),
        (lambda grad: (grad, None), "make it as large as 'x'"),
    ],
)
def test_shape_that_is_wrong_in_another_way(rule, do):
    assert f"\n  do         {do}" in returned(rule)


def test_dtype():
    assert_expected_inline(
        returned(lambda grad, x: (x.float(), None)),
        """\
GradientError: words::linear: the gradient of 'x' has the wrong dtype
  expected   torch.float64, the dtype of 'x'
  found      torch.float32
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         convert it: grad.to(torch.float64)""",
    )


def test_device():
    assert_expected_inline(
        returned(lambda grad, x: (x.to("meta"), None)),
        """\
GradientError: words::linear: the gradient of 'x' is on the wrong device
  expected   cpu, the device of 'x'
  found      meta
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         compute it where the input is""",
    )


def test_no_tensor():
    assert_expected_inline(
        returned(lambda grad, x: (0.0, None)),
        """\
GradientError: words::linear: the gradient of 'x' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      float: 0.0
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return a tensor: torch.tensor(...)""",
    )


def test_missing():
    assert_expected_inline(
        returned(lambda grad, x: {"x": x}),
        """\
GradientError: words::linear: the gradient of 'weight' is missing
  expected   an entry 'weight'
  found      entries 'x'
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return one; where it is zero, return 'weight': None""",
    )


def test_none_without_a_name():
    op = custom_op("words::doubled", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)
    op.register_backward(lambda grad: None)
    assert_expected_inline(
        message(lambda: op(rand(3)).sum().backward()),
        """\
GradientError: words::doubled: the backward returns None
  expected   a dict or a tuple for 'x'
  found      None
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         is a return missing? if the gradient is zero, return {'x': None}""",
    )


def test_callable_without_a_gradient():
    assert_expected_inline(
        returned(lambda grad, x: {"x": lambda: None, "weight": None}),
        """\
GradientError: words::linear: the backward returns a callable for 'x' that returns None
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         is a return missing? if the gradient is zero, return None in place of the callable""",
    )


def test_tangent_without_a_name():
    doubled = "(Tensor x) -> Tensor"
    assert_expected_inline(
        pushed(lambda tangent_x: None, schema=doubled, kernel=lambda x: x * 2),
        """\
GradientError: words::pushed: the jvp returns None
  expected   a dict or a tuple for 'output'
  found      None
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE
  do         is a return missing? if the tangent is zero, return {'output': None}""",
    )


def test_surplus():
    assert_expected_inline(
        returned(lambda grad, x: {"x": x, "weight": None, "n": None}),
        """\
GradientError: words::linear: the backward returns a gradient for 'n', which carries none
  expected   gradients for 'x', 'weight'
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         leave 'n' out of the result""",
    )


def test_surplus_for_what_is_none_in_a_call():
    op = custom_op("words::biased", lambda x, bias: x * 1, schema="(Tensor x, Tensor? bias=None) -> Tensor")
    op.register_backward(lambda grad: {"x": grad, "bias": grad.sum(0)})
    op.validation = "full"

    assert_expected_inline(
        message(lambda: op(rand(2, 3)).sum().backward()),
        """\
GradientError: words::biased: the backward returns a gradient for 'bias', which has none in this call
  expected   None, or no entry
  found      a tensor of shape (3,), and 'bias' is None
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return a callable, which runs only if the gradient is needed""",
    )


def test_surplus_for_integers():
    op = custom_op("words::indexed", lambda x, index: x * 1, schema="(Tensor x, Tensor index) -> Tensor")
    op.register_backward(lambda grad: {"x": grad, "index": grad})
    op.validation = "full"

    assert_expected_inline(
        message(lambda: op(rand(2), torch.tensor([0, 1])).sum().backward()),
        """\
GradientError: words::indexed: the backward returns a gradient for 'index', which has none in this call
  expected   None, or no entry
  found      a tensor of shape (2,), and 'index' is torch.int64
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return None""",
    )


def test_misnamed():
    assert_expected_inline(
        returned(lambda grad, x: {"x": x, "wieght": None}),
        """\
GradientError: words::linear: the backward returns a gradient for 'wieght', which is not an input
  expected   gradients for 'x', 'weight'
  found      'wieght'
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         did you mean 'weight'?""",
    )


def test_wrong_number():
    assert_expected_inline(
        returned(lambda grad, x: (x, None, None)),
        """\
GradientError: words::linear: the backward returns the wrong number of gradients
  expected   2: 'x', 'weight'
  found      3
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return one per differentiable input, in order, or a dict by name""",
    )


def test_one_for_several():
    assert_expected_inline(
        returned(lambda grad, x: x),
        """\
GradientError: words::linear: the backward returns one value for several inputs
  expected   a dict or a tuple for 'x', 'weight'
  found      a tensor of shape (5, 4)
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return a dict by input name""",
    )


def test_list_that_is_none():
    assert_expected_inline(
        returned_list(lambda grad: grad),
        """\
GradientError: words::total: the gradient of the list 'xs' is not a list
  expected   a list of 2
  found      a tensor of shape (2,)
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return one gradient (or None) per tensor of the list""",
    )


def test_list_of_a_wrong_length():
    assert_expected_inline(
        returned_list(lambda grad: {"xs": [grad]}),
        """\
GradientError: words::total: the gradient of the list 'xs' has the wrong length
  expected   2
  found      1
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return one per tensor, or None""",
    )


def test_list_with_a_wrong_shape():
    assert_expected_inline(
        returned_list(lambda grad: [grad, grad.sum()]),
        """\
GradientError: words::total: the gradient of 'xs[1]' has the wrong shape
  expected   (2,), the shape of 'xs[1]'
  found      ()
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         make it as large as 'xs[1]'""",
    )


def test_list_with_a_number():
    assert_expected_inline(
        returned_list(lambda grad: [grad, 1]),
        """\
GradientError: words::total: the gradient of 'xs[1]' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      int: 1
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return a tensor: torch.tensor(...)""",
    )


def test_misspelt_needs():
    op = custom_op("words::linear", linear, schema=SCHEMA, replace=True)
    op.register_backward(lambda grad, needs: needs.wieght)
    assert_expected_inline(
        message(lambda: op(rand(5, 4), rand(3, 4)).sum().backward(), AttributeError),
        """\
UnknownNameError: words::linear: a rule reads 'wieght' of needs or meta, which is not there
  expected   'x', 'weight'
  found      'wieght'
  rule       FILE.py:LINE, backward
  do         did you mean 'weight'?""",
    )


def test_unknown_meta():
    op = custom_op("words::linear", linear, schema=SCHEMA, replace=True)
    op.register_backward(lambda grad, meta: meta.bias)
    assert_expected_inline(
        message(lambda: op(rand(5, 4), rand(3, 4)).sum().backward(), AttributeError),
        """\
UnknownNameError: words::linear: a rule reads 'bias' of needs or meta, which is not there
  expected   'x', 'weight', 'output'
  found      'bias'
  rule       FILE.py:LINE, backward
  do         name one of 'x', 'weight', 'output'""",
    )


def test_no_backward():
    op = custom_op("words::bare", linear, schema=SCHEMA)
    assert_expected_inline(
        message(lambda: op(rand(5, 4), rand(3, 4)).sum().backward()),
        """\
GradientUnavailable: words::bare: a gradient is requested, but no backward is registered
  declared   FILE.py:LINE
  do         register one with register_backward, register_grad or register_autograd, or a differentiable reference with register_reference""",
    )


def test_no_rule_for_one_input():
    op = custom_op("words::half", linear, schema=SCHEMA)
    op.register_grad("x")(lambda grad, weight: grad @ weight)
    assert_expected_inline(
        message(lambda: op(rand(5, 4), rand(3, 4)).sum().backward()),
        """\
GradientUnavailable: words::half: there is no rule for the gradient of 'weight'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         register one with register_backward or register_grad, or a differentiable register_reference""",
    )


def test_reference_with_another_number_of_results():
    op = custom_op("words::referred", both, schema=HIDDEN, hidden="rstd")
    op.register_reference(lambda x: x * 1)
    assert_expected_inline(
        message(lambda: op(rand(2)).sum().backward()),
        """\
GradientError: words::referred: the reference returns the wrong number of results
  expected   2: 'out', 'rstd'
  found      1
  declared   FILE.py:LINE
  do         return what the kernel returns, hidden outputs included""",
    )


def test_write_without_a_rule():
    op = custom_op("words::plus_", lambda x: None, schema="(Tensor(a!) x) -> ()", mutates_args="x")
    assert_expected_inline(
        message(lambda: op(rand(2) * 1)),
        """\
GradientUnavailable: words::plus_: the op writes to 'x' and has no backward, and 'x' requires a gradient, which would be wrong
  declared   FILE.py:LINE
  do         register_backward, name the inputs that carry no gradient in non_differentiable=, or call it under torch.no_grad()""",
    )


def test_write_without_a_rule_that_two_inputs_need():
    op = custom_op("words::mul_", lambda x, w: None, schema="(Tensor(a!) x, Tensor w) -> ()", mutates_args="x")
    assert_expected_inline(
        message(lambda: op(rand(2) * 1, rand(2))),
        """\
GradientUnavailable: words::mul_: the op writes to 'x' and has no backward, and 'x' and 'w' require gradients, which would be wrong
  declared   FILE.py:LINE
  do         register_backward, name the inputs that carry no gradient in non_differentiable=, or call it under torch.no_grad()""",
    )


def test_once_differentiable():
    op = custom_op("words::once", lambda x: x**3, schema="(Tensor x) -> Tensor")
    op.register_backward(lambda grad, x: 3 * grad * x**2, once_differentiable=True)
    assert_expected_inline(
        twice(op),
        """\
GradientUnavailable: words::once: the backward is declared once-differentiable, and a second derivative is requested
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         write the rule in differentiable operations, and leave once_differentiable out""",
    )


def test_hidden_output_that_no_rule_names():
    op = custom_op("words::normed", lambda x: (x**3, x**2), schema=HIDDEN, hidden="rstd")
    op.register_backward(lambda grad, rstd: 3 * grad * rstd)
    assert_expected_inline(
        twice(op),
        """\
GradientUnavailable: words::normed: a second derivative needs the gradient of the hidden output 'rstd', which no rule names
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         take 'grad_rstd' in the backward rule and add its share, or register a differentiable reference""",
    )


def test_drop_in_too_many():
    assert_expected_inline(
        message(dropped_in(lambda ctx, grad: (grad, None, None, grad))),
        """\
GradientError: words::dropped_in: the backward returns the wrong number of gradients
  expected   2: 'x', 'n'
  found      4
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return one per positional argument and keyword-only tensor, None for what is not a tensor""",
    )


def test_drop_in_too_few():
    assert_expected_inline(
        message(dropped_in(lambda ctx, grad: grad)),
        """\
GradientError: words::dropped_in: the backward returns the wrong number of gradients
  expected   2: 'x', 'n'
  found      1
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return one per positional argument and keyword-only tensor, None for what is not a tensor""",
    )


def test_drop_in_for_a_number():
    assert_expected_inline(
        message(dropped_in(lambda ctx, grad: (grad, grad))),
        """\
GradientError: words::dropped_in: the backward returns a gradient for 'n', which carries none
  expected   None
  found      Tensor
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return None in its place""",
    )


def test_drop_in_no_tensor():
    assert_expected_inline(
        message(dropped_in(lambda ctx, grad: (1.5, None))),
        """\
GradientError: words::dropped_in: the gradient of 'x' is not a tensor
  expected   a tensor or None
  found      float: 1.5
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return a tensor: torch.tensor(...)""",
    )


def test_drop_in_list_of_a_wrong_length():
    assert_expected_inline(
        message(dropped_in_list(lambda ctx, grad: [grad])),
        """\
GradientError: words::dropped_in_list: the gradient of the list 'xs' does not fit it
  expected   a list of 2
  found      1
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return one gradient (or None) per tensor of the list""",
    )


def test_drop_in_no_list():
    assert_expected_inline(
        message(dropped_in_list(lambda ctx, grad: grad)),
        """\
GradientError: words::dropped_in_list: the gradient of the list 'xs' does not fit it
  expected   a list of 2
  found      Tensor
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return one gradient (or None) per tensor of the list""",
    )


def test_drop_in_saving_a_number():
    assert_expected_inline(
        message(
            lambda: dropped_in(
                lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(3)
            ),
            TypeError,
        ),
        """TypeError: save_for_backward can only save tensors, but argument 0 is of type int: keep other values as attributes of ctx""",
    )


def test_jvp_that_does_not_name_a_tangent():
    op = custom_op("words::dropped", lambda x, y: x * y, schema="(Tensor x, Tensor y) -> Tensor", replace=True)
    op.register_jvp(lambda y, tangent_x: tangent_x * y)

    one = torch.ones(2)
    assert_expected_inline(
        message(lambda: torch.func.jvp(op, (one, one), (one, one))),
        """\
GradientError: words::dropped: 'y' has a tangent, and the jvp does not take it
  expected   a parameter 'tangent_y'
  found      'y', 'tangent_x'
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE
  do         name 'tangent_y'; where 'y' has no derivative, declare it non_differentiable""",
    )


def test_jvp_of_a_wrong_number():
    assert_expected_inline(
        pushed(lambda tangent_x: (tangent_x,)),
        """\
GradientError: words::pushed: the jvp returns the wrong number of tangents
  expected   2: 'a', 'b'
  found      1
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE""",
    )


def test_jvp_one_for_several():
    assert_expected_inline(
        pushed(lambda tangent_x: tangent_x),
        """\
GradientError: words::pushed: the jvp returns one tangent for several outputs
  expected   a dict or a tuple for 'a', 'b'
  found      Tensor
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE""",
    )


def test_jvp_missing():
    assert_expected_inline(
        pushed(lambda tangent_x: {"a": tangent_x}),
        """\
GradientError: words::pushed: the tangent of 'b' is missing
  expected   an entry 'b'
  found      entries 'a'
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE
  do         where it is zero, return 'b': None""",
    )


def test_jvp_misnamed():
    assert_expected_inline(
        pushed(lambda tangent_x: {"a": tangent_x, "bb": tangent_x}),
        """\
GradientError: words::pushed: the jvp returns a tangent for 'bb', which is not a differentiable output
  expected   'a', 'b'
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE
  do         did you mean 'b'?""",
    )


def test_jvp_no_tensor():
    assert_expected_inline(
        pushed(lambda tangent_x: (tangent_x, 1)),
        """\
GradientError: words::pushed: the tangent of 'b' is not a tensor
  expected   a tensor or None
  found      int
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE
  do         return a tensor: torch.tensor(...)""",
    )


def test_jvp_of_a_wrong_shape():
    assert_expected_inline(
        pushed(lambda tangent_x: (tangent_x, tangent_x.sum())),
        """\
GradientError: words::pushed: the tangent of 'b' does not match the output
  expected   (2,), torch.float32
  found      (), torch.float32
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE""",
    )


def test_jvp_of_an_integer():
    def kernel(x):
        return x * 1, x.argmax()

    assert_expected_inline(
        pushed(lambda tangent_x: {"a": tangent_x, "b": torch.tensor(0)}, kernel=kernel),
        """\
GradientError: words::pushed: the jvp returns a tangent for 'b', whose dtype cannot have one
  found      an output of torch.int64
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE
  do         leave 'b' out, or return 'b': None""",
    )


def test_jvp_that_does_not_exist():
    assert_expected_inline(
        pushed(None),
        """\
GradientUnavailable: words::pushed: the op has neither a jvp nor a backward rule, and a tangent is requested
  declared   FILE.py:LINE
  do         register one with register_jvp, or a differentiable register_backward""",
    )


def test_jvp_of_a_once_differentiable_backward():
    op = custom_op("words::once_forward", lambda x: x**3, schema="(Tensor x) -> Tensor")
    op.register_backward(lambda grad, x: 3 * grad * x**2, once_differentiable=True)
    assert_expected_inline(
        message(lambda: torch.func.jvp(op, (torch.ones(2),), (torch.ones(2),))),
        """\
GradientUnavailable: words::once_forward: the op cannot derive forward mode from a backward that is once-differentiable
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         register_jvp, or write the backward in differentiable operations""",
    )


def test_jvp_of_a_backward_that_is_not_differentiable():
    op = custom_op("words::constant", lambda x: x**3, schema="(Tensor x) -> Tensor")
    op.register_backward(lambda grad, x: (3 * grad * x**2).detach())
    assert_expected_inline(
        message(lambda: torch.func.jvp(op, (torch.ones(2),), (torch.ones(2),))),
        """\
GradientUnavailable: words::constant: the op cannot derive forward mode: the gradient of 'x' is not differentiable
  declared   FILE.py:LINE
  do         where it is always zero, return None for 'x'; else register_jvp, or write the backward in differentiable operations""",
    )


def test_jvp_of_a_reference_whose_gradient_is_cut():
    inner = custom_op("words::cut", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    inner.register_backward(lambda grad: grad.detach() * 2)
    op = custom_op("words::around_cut", lambda x: inner(x), schema="(Tensor x) -> Tensor", reference=True)
    assert_expected_inline(
        message(lambda: torch.func.jvp(op, (torch.ones(2),), (torch.ones(2),))),
        """\
GradientUnavailable: words::around_cut: the op cannot derive forward mode: the gradient of 'x' is not differentiable
  declared   FILE.py:LINE
  do         register_jvp, or where it is always zero, a backward that returns None for 'x'""",
    )


def test_hidden_tangent_that_is_not_known():
    op = custom_op("words::half_known", lambda x: (x**3, x**2), schema=HIDDEN, hidden="rstd")
    op.register_backward(lambda grad, rstd: 3 * grad * rstd)
    op.register_jvp(lambda tangent_x, x: 3 * tangent_x * x**2)
    gradient = torch.func.grad(lambda x: op(x).sum())
    assert_expected_inline(
        message(lambda: torch.func.jvp(gradient, (torch.ones(2),), (torch.ones(2),))),
        """\
GradientUnavailable: words::half_known: the tangent of the hidden output 'rstd' is not known, and a gradient depends on it
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE
  do         return it from the jvp rule by name, take 'grad_rstd' in the backward, or register a differentiable reference""",
    )


def test_write_to_a_leaf():
    op = custom_op("words::add_to_leaf_", lambda x: None, schema="(Tensor(a!) x) -> ()", mutates_args="x")
    op.register_backward(lambda grad: grad)
    assert_expected_inline(
        message(lambda: op(rand(2))),
        """\
GradientError: words::add_to_leaf_: 'x' is a leaf that requires a gradient, or a view of one, and the op writes to it
  declared   FILE.py:LINE
  do         call it under torch.no_grad(), or on a copy""",
    )


def test_layout():
    op = custom_op("words::sparse", lambda x: x.to_dense(), schema="(Tensor x) -> Tensor")
    op.register_backward(lambda grad: grad)
    x = torch.eye(2, dtype=torch.float64).to_sparse().requires_grad_()
    assert_expected_inline(
        message(lambda: op(x).sum().backward()),
        """\
GradientError: words::sparse: the gradient of 'x' has the wrong layout
  expected   torch.sparse_coo
  found      torch.strided
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         convert it: .to_sparse(), .to_sparse_csr(), ...""",
    )


class FrozenError(Exception):
    __notes__ = ()


class RefusingError(Exception):
    def add_note(self, note):
        raise RuntimeError("no notes")


def fail(kind):
    raise kind("own")


RULES = {
    "backward": lambda op, kind: op.register_backward(lambda grad: fail(kind)),
    "autograd": lambda op, kind: op.register_autograd(lambda ctx, grad: fail(kind)),
    "reference": lambda op, kind: op.register_reference(lambda x: fail(kind)),
}


@each("register", RULES.values(), ids=RULES)
@each("kind", [FrozenError, RefusingError])
def test_an_exception_that_takes_no_note_is_raised_as_it_is(register, kind, both_calls):
    op = custom_op("words::notes", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)
    register(op, kind)
    for _ in range(3):
        result = op(rand(2)).sum()
        with pytest.raises(kind, match=r"^own$"):
            result.backward()


def test_a_gradient_that_is_a_numpy_array():
    op = custom_op("words::as_array", lambda x: x * 1, schema="(Tensor x) -> Tensor", replace=True)
    op.register_backward(lambda grad: grad.numpy())
    assert_expected_inline(
        message(lambda: op(torch.ones(2, requires_grad=True)).sum().backward()),
        """\
GradientError: words::as_array: the gradient of 'x' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      ndarray: array([1., 1.], dtype=float32)
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         return torch.from_numpy(...), which shares memory, or torch.tensor(...), which copies""",
    )


def test_the_beginning_of_a_name():
    op = custom_op("words::begun", lambda x, weight: x * 1, schema="(Tensor x, Tensor weight) -> Tensor", replace=True)
    op.register_backward(lambda grad: {"x": grad, "w": grad})
    x = torch.ones(2, requires_grad=True)
    assert_expected_inline(
        message(lambda: op(x, torch.ones(2)).sum().backward()),
        """\
GradientError: words::begun: the backward returns a gradient for 'w', which is not an input
  expected   gradients for 'x', 'weight'
  found      'w'
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         did you mean 'weight'?""",
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 shows no notes")
def test_dtypes_that_autocast_mixes_are_noted_with_the_policy():
    op = custom_op("words::mixed", lambda x, w: x @ w, schema="(Tensor x, Tensor w) -> Tensor", reference=True)
    op.register_backward(lambda grad, x, w: {"x": grad @ w.t(), "w": x.t() @ grad})
    x = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = op(x, x)
    with pytest.raises(RuntimeError, match="same dtype") as caught:
        y.sum().backward()

    assert "if the forward ran under autocast: op.register_autocast('cpu', 'keep')" in caught.value.__notes__[1]
