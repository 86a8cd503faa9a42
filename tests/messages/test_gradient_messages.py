"""What a derivative is answered with when a rule is missing, or returns something wrong."""

# ruff: noqa: E501 - a message is as long as it is

import sys

import numpy as np
import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch import Tensor

from custom_autograd import CustomAutogradError, custom_op

PLAIN = "(Tensor x) -> Tensor"
SCHEMA = "(Tensor x, Tensor weight, int n=1) -> Tensor"
HIDDEN = "(Tensor x) -> (Tensor out, Tensor rstd)"
PAIR = "(Tensor x) -> (Tensor a, Tensor b)"


def rand(*shape):
    return torch.rand(*shape, dtype=torch.float64, requires_grad=True)


ONE = rand(1)


def linear(x, weight, n=1):
    return x @ weight.T


def both(x):
    return x * 1, x * 2


class ArrayOfJax:
    def __dlpack__(self):
        raise NotImplementedError

    def __repr__(self):
        return "Array([1., 1.])"


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


def derived(schema, rule, *inputs, kernel=lambda x, *others: x * 1, **options):
    """The gradient of another op, with every check of what its rule returns."""
    op = custom_op("words::derived", kernel, schema=schema, replace=True, **options)
    if rule is not None:
        op.register_backward(rule)
    op.validation = "full"
    return message(lambda: op(*inputs).sum().backward())


def dropped_in(
    result,
    schema="(Tensor x, int n) -> Tensor",
    inputs=(ONE, 2),
    kernel=lambda x, n: x * n,
    setup_context=None,
    error=CustomAutogradError,
):
    """A backward of the drop-in half that returns something wrong."""
    op = custom_op("words::dropped_in", kernel, schema=schema, replace=True)
    op.register_autograd(result, setup_context=setup_context)
    return message(lambda: op(*inputs).sum().backward(), error)


def pushed(rule, schema=PAIR, kernel=both, backward=None, **options):
    """A jvp that returns something wrong, or none."""
    op = custom_op("words::pushed", kernel, schema=schema, replace=True, **options)
    if rule is not None:
        op.register_jvp(rule)
    if backward is not None:
        op.register_backward(backward)
    return message(lambda: torch.func.jvp(op, (torch.ones(2),), (torch.ones(2),)))


def twice(op):
    x = rand(2)
    (gradient,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    return message(lambda: gradient.sum().backward())


def test_values_that_do_not_fit_the_input():
    assert_expected_inline(
        together(
            returned(lambda grad, x, weight: {"x": grad @ weight, "weight": (grad.T @ x).expand(7, 3, 4)}),
            returned(lambda grad, x: (x.float(), None)),
            returned(lambda grad, x: (x.to("meta"), None)),
            returned(lambda grad, x: (0.0, None)),
            returned(lambda grad, x: (np.ones(2, np.float32), None)),
            returned(lambda grad, x: (np.float64(2.0), None)),
            returned(lambda grad, x: (ArrayOfJax(), None)),
            returned(lambda grad, x: {"x": [grad.dtype], "weight": None}),
            returned(lambda grad, x: {"x": lambda: 3, "weight": None}),
            returned(lambda grad, x: {"x": lambda: None, "weight": None}),
        ),
        """\
GradientError: words::linear
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
the gradient of 'weight' has the wrong shape
  expected   (3, 4), the shape of 'weight'
  found      (7, 3, 4)
  do         sum over dimension 0: 'weight' was broadcast there
the gradient of 'x' has the wrong dtype
  expected   torch.float64, the dtype of 'x'
  found      torch.float32
  do         convert it: grad.to(torch.float64)
the gradient of 'x' is on the wrong device
  expected   cpu, the device of 'x'
  found      meta
  do         compute it where the input is
the gradient of 'x' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      float: 0.0
  do         return None, which means zero
the gradient of 'x' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      ndarray: array([1., 1.], dtype=float32)
  do         return torch.from_numpy(...), which shares memory, or torch.tensor(...), which copies
the gradient of 'x' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      float64: np.float64(2.0)
  do         return a tensor: torch.tensor(...)
the gradient of 'x' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      ArrayOfJax: Array([1., 1.])
  do         return torch.from_dlpack(...), which shares memory, or torch.tensor(...), which copies
the gradient of 'x' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      list: [torch.float64]
  do         return a tensor: torch.tensor(...)
the gradient of 'x' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      int: 3
  do         return a tensor: torch.tensor(...)
the backward returns a callable for 'x' that returns None
  do         is a return missing? if the gradient is zero, return None in place of the callable""",
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
        (lambda grad, x: (x[None], None), "sum over dimension 0: 'x' was broadcast there"),
        (lambda grad, x: (x + 0j, None), "convert it: grad.to(torch.float64)"),
    ],
)
def test_shape_that_is_wrong_in_another_way(rule, do):
    assert f"\n  do         {do}" in returned(rule)


def test_names_and_numbers_of_gradients():
    assert_expected_inline(
        together(
            returned(lambda grad, x: {"x": x}),
            returned(lambda grad, x: {"x": x, "weight": None, "n": None}),
            returned(lambda grad, x: {"x": x, "wieght": None}),
            returned(lambda grad, x: {"x": x, "w": None}),
            returned(lambda grad, x: (x, None, None)),
            returned(lambda grad, x: (x,)),
            returned(lambda grad, x: x),
            returned(lambda grad, x: {grad.dtype}),
            returned(lambda grad, x: None),
        ),
        """\
GradientError: words::linear
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
the gradient of 'weight' is missing
  expected   an entry 'weight'
  found      entries 'x'
  do         return one; where it is zero, return 'weight': None
the backward returns a gradient for 'n', which carries none
  expected   gradients for 'x', 'weight'
  do         leave 'n' out of the result
the backward returns a gradient for 'wieght', which is not an input
  expected   gradients for 'x', 'weight'
  found      'wieght'
  do         did you mean 'weight'?
the backward returns a gradient for 'w', which is not an input
  expected   gradients for 'x', 'weight'
  found      'w'
  do         did you mean 'weight'?
the backward returns the wrong number of gradients
  expected   2: 'x', 'weight'
  found      3
  do         return one per differentiable input, in order, or a dict by name
the backward returns the wrong number of gradients
  expected   2: 'x', 'weight'
  found      1
  do         return one per differentiable input, in order, or a dict by name
the backward returns one value for several inputs
  expected   a dict or a tuple for 'x', 'weight'
  found      a tensor of shape (5, 4)
  do         return a dict by input name, or declare an input that never has a gradient in non_differentiable=
the backward returns one value for several inputs
  expected   a dict or a tuple for 'x', 'weight'
  found      set: {torch.float64}
  do         return a dict by input name, or declare an input that never has a gradient in non_differentiable=
the backward returns None
  expected   a dict or a tuple for 'x', 'weight'
  found      None
  do         is a return missing? if the gradient is zero, return {'x': None, 'weight': None}""",
    )


def test_gradients_of_ops_with_other_arguments():
    sparse = torch.eye(2, dtype=torch.float64).to_sparse().requires_grad_()
    assert_expected_inline(
        together(
            derived("(Tensor x) -> Tensor", lambda grad: None, rand(3)),
            derived(
                "(Tensor x, Tensor? bias=None) -> Tensor", lambda grad: {"x": grad, "bias": grad.sum(0)}, rand(2, 3)
            ),
            derived(
                "(Tensor x, Tensor index) -> Tensor", lambda grad: {"x": grad, "index": grad}, rand(2), torch.arange(2)
            ),
            derived("(Tensor x, Tensor b) -> Tensor", lambda grad: {"x": grad, "b": grad}, rand(2, 3, 4), rand(3, 1)),
            derived("(Tensor x) -> Tensor", lambda grad: grad, sparse, kernel=lambda x: x.to_dense()),
        ),
        """\
GradientError: words::derived
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
the backward returns None
  expected   a dict or a tuple for 'x'
  found      None
  do         is a return missing? if the gradient is zero, return {'x': None}
the backward returns a gradient for 'bias', which has none in this call
  expected   None, or no entry
  found      a tensor of shape (3,), and 'bias' is None
  do         return a callable, which runs only if the gradient is needed
the backward returns a gradient for 'index', which has none in this call
  expected   None, or no entry
  found      a tensor of shape (2,), and 'index' is torch.int64
  do         return None
the gradient of 'b' has the wrong shape
  expected   (3, 1), the shape of 'b'
  found      (2, 3, 4)
  do         sum over dimensions 0, 2: 'b' was broadcast there
the gradient of 'x' has the wrong layout
  expected   torch.sparse_coo
  found      torch.strided
  do         convert it: .to_sparse(), .to_sparse_csr(), ...""",
    )


def test_jvp():
    assert_expected_inline(
        together(
            pushed(lambda tangent_x: None, "(Tensor x) -> Tensor", lambda x: x * 2),
            pushed(lambda tangent_x: (tangent_x,)),
            pushed(lambda tangent_x: tangent_x),
            pushed(lambda tangent_x: {"a": tangent_x}),
            pushed(lambda tangent_x: {"a": tangent_x, "bb": tangent_x}),
            pushed(lambda tangent_x: (tangent_x, 1)),
            pushed(lambda tangent_x: (tangent_x, tangent_x.sum())),
            pushed(lambda tangent_x: {"a": tangent_x, "b": torch.tensor(0)}, kernel=lambda x: (x * 1, x.argmax())),
        ),
        """\
GradientError: words::pushed
  rule       FILE.py:LINE, jvp
  declared   FILE.py:LINE
the jvp returns None
  expected   a dict or a tuple for 'output'
  found      None
  do         is a return missing? if the tangent is zero, return {'output': None}
the jvp returns the wrong number of tangents
  expected   2: 'a', 'b'
  found      1
the jvp returns one tangent for several outputs
  expected   a dict or a tuple for 'a', 'b'
  found      Tensor
the tangent of 'b' is missing
  expected   an entry 'b'
  found      entries 'a'
  do         where it is zero, return 'b': None
the jvp returns a tangent for 'bb', which is not a differentiable output
  expected   'a', 'b'
  do         did you mean 'b'?
the tangent of 'b' is not a tensor
  expected   a tensor or None
  found      int
  do         return a tensor: torch.tensor(...)
the tangent of 'b' does not match the output
  expected   (2,), torch.float32
  found      (), torch.float32
the jvp returns a tangent for 'b', whose dtype cannot have one
  found      an output of torch.int64
  do         leave 'b' out, or return 'b': None""",
    )


def test_gradients_of_a_list():
    assert_expected_inline(
        together(
            returned_list(lambda grad: grad),
            returned_list(lambda grad: {"xs": [grad]}),
            returned_list(lambda grad: [grad, grad, grad]),
            returned_list(lambda grad: {"x": [grad, grad]}),
            returned_list(lambda grad: [grad, grad.sum()]),
            returned_list(lambda grad: [grad, 1]),
        ),
        """\
GradientError: words::total
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
the gradient of the list 'xs' is not a list
  expected   a list of 2
  found      a tensor of shape (2,)
  do         return one gradient (or None) per tensor of the list
the gradient of the list 'xs' has the wrong length
  expected   2
  found      1
  do         return one per tensor, or None
the gradient of the list 'xs' has the wrong length
  expected   2
  found      3
  do         return one per tensor, or None
the backward returns a gradient for 'x', which is not an input
  expected   gradients for 'xs'
  found      'x'
  do         did you mean 'xs'?
the gradient of 'xs[1]' has the wrong shape
  expected   (2,), the shape of 'xs[1]'
  found      ()
  do         make it as large as 'xs[1]'
the gradient of 'xs[1]' is not a tensor
  expected   a tensor, None, or a callable that returns one
  found      int: 1
  do         return a tensor: torch.tensor(...)""",
    )


def test_a_name_that_needs_or_meta_does_not_have():
    assert_expected_inline(
        together(
            returned(lambda grad, needs: needs.wieght),
            returned(lambda grad, meta: meta.bias),
        ),
        """\
UnknownNameError: words::linear
  rule       FILE.py:LINE, backward
a rule reads 'wieght' of needs or meta, which is not there
  expected   'x', 'weight'
  found      'wieght'
  do         did you mean 'weight'?
a rule reads 'bias' of needs or meta, which is not there
  expected   'x', 'weight', 'output'
  found      'bias'
  do         name one of 'x', 'weight', 'output'""",
    )


def test_gradients_that_no_rule_gives():
    assert_expected_inline(
        together(
            derived(PLAIN, None, rand(2)),
            derived("(Tensor(a!) x) -> ()", None, rand(2) * 1, mutates_args="x"),
            derived("(Tensor(a!) x, Tensor w) -> ()", None, rand(2) * 1, rand(2), mutates_args="x"),
        ),
        """\
GradientUnavailable: words::derived
  declared   FILE.py:LINE
a gradient is requested, but no backward is registered
  do         register one with register_backward, register_grad or register_autograd, or a differentiable reference with register_reference
the op writes to 'x' and has no backward, and 'x' requires a gradient, which would be wrong
  do         register_backward, name the inputs that carry no gradient in non_differentiable=, or call it under torch.no_grad()
the op writes to 'x' and has no backward, and 'x' and 'w' require gradients, which would be wrong
  do         register_backward, name the inputs that carry no gradient in non_differentiable=, or call it under torch.no_grad()""",
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


once = custom_op("words::once", lambda x: x**3, schema=PLAIN)
once.register_backward(lambda grad, x: 3 * grad * x**2, once_differentiable=True)
normed = custom_op("words::normed", lambda x: (x**3, x**2), schema=HIDDEN, hidden="rstd")
normed.register_backward(lambda grad, rstd: 3 * grad * rstd)
half_known = custom_op("words::half_known", lambda x: (x**3, x**2), schema=HIDDEN, hidden="rstd")
half_known.register_backward(lambda grad, rstd: 3 * grad * rstd)
half_known.register_jvp(lambda tangent_x, x: 3 * tangent_x * x**2)
half = custom_op("words::half", linear, schema=SCHEMA)
half.register_grad("x")(lambda grad, weight: grad @ weight)


def test_derivatives_that_a_rule_does_not_have():
    one = torch.ones(2)
    assert_expected_inline(
        together(
            twice(once),
            message(lambda: torch.func.jvp(once, (one,), (one,))),
            twice(normed),
            message(lambda: torch.func.jvp(torch.func.grad(lambda x: half_known(x).sum()), (one,), (one,))),
            message(lambda: half(rand(5, 4), rand(3, 4)).sum().backward()),
        ),
        """\
GradientUnavailable
  declared   FILE.py:LINE
words::once: the backward is declared once-differentiable, and a second derivative is requested
  rule       FILE.py:LINE, backward
  do         write the rule in differentiable operations, and leave once_differentiable out
words::once: the op cannot derive forward mode from a backward that is once-differentiable
  rule       FILE.py:LINE, backward
  do         register_jvp, or write the backward in differentiable operations
words::normed: a second derivative needs the gradient of the hidden output 'rstd', which no rule names
  rule       FILE.py:LINE
  do         take 'grad_rstd' in the backward rule and add its share, or a differentiable reference with register_reference
words::half_known: the tangent of the hidden output 'rstd' is not known, and a gradient depends on it
  rule       FILE.py:LINE, jvp
  do         return it from the jvp rule by name, take 'grad_rstd' in the backward, or register a differentiable reference
words::half: there is no rule for the gradient of 'weight'
  rule       FILE.py:LINE
  do         register one with register_backward or register_grad, or a differentiable reference with register_reference""",
    )


def test_drop_in():
    of_a_list = "(Tensor[] xs) -> Tensor", ([ONE, ONE],), lambda xs: xs[0] + xs[1]
    assert_expected_inline(
        together(
            dropped_in(lambda ctx, grad: (grad, None, None, grad)),
            dropped_in(lambda ctx, grad: grad),
            dropped_in(lambda ctx, grad: (grad, grad)),
            dropped_in(lambda ctx, grad: (1.5, None)),
            dropped_in(lambda ctx, grad: [grad], *of_a_list),
            dropped_in(lambda ctx, grad: grad, *of_a_list),
        ),
        """\
GradientError: words::dropped_in
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
the backward returns the wrong number of gradients
  expected   2: 'x', 'n'
  found      4
  do         return one per positional argument and keyword-only tensor, None for what is not a tensor
the backward returns the wrong number of gradients
  expected   2: 'x', 'n'
  found      1
  do         return one per positional argument and keyword-only tensor, None for what is not a tensor
the backward returns a gradient for 'n', which carries none
  expected   None
  found      Tensor
  do         return None in its place
the gradient of 'x' is not a tensor
  expected   a tensor or None
  found      float: 1.5
  do         return a tensor: torch.tensor(...)
the gradient of the list 'xs' does not fit it
  expected   a list of 2
  found      1
  do         return one gradient (or None) per tensor of the list
the gradient of the list 'xs' does not fit it
  expected   a list of 2
  found      Tensor
  do         return one gradient (or None) per tensor of the list""",
    )


def test_drop_in_saving_a_number():
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(3)

    assert_expected_inline(
        dropped_in(lambda ctx, grad: grad, setup_context=setup_context, error=TypeError),
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


@custom_op("words::cut")
def cut(x: Tensor) -> Tensor:
    return x * 2


cut.register_backward(lambda grad: grad.detach() * 2)


def test_tangents_that_no_rule_gives():
    assert_expected_inline(
        together(
            pushed(None),
            pushed(None, PLAIN, lambda x: x**3, backward=lambda grad, x: (3 * grad * x**2).detach()),
            pushed(None, PLAIN, lambda x: cut(x), reference=True),
        ),
        """\
GradientUnavailable: words::pushed
  declared   FILE.py:LINE
the op has neither a jvp nor a backward rule, and a tangent is requested
  do         register one with register_jvp, or a differentiable register_backward
the op cannot derive forward mode: the gradient of 'x' is not differentiable
  do         where it is always zero, return None for 'x'; else register_jvp, or write the backward in differentiable operations
the op cannot derive forward mode: the gradient of 'x' is not differentiable
  do         register_jvp, or where it is always zero, a backward that returns None for 'x'""",
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
