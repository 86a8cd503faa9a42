"""What a setup_context computes has a history: second derivatives follow it, or raise."""

import weakref

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each

from custom_autograd import custom_op
from custom_autograd.core.errors import GradientUnavailable

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def declare(name, kernel, backward, setup_context, schema="(Tensor x) -> Tensor"):
    op = custom_op(f"computed::{name}", kernel, schema=schema)
    op.register_fake(lambda x, *_: torch.empty_like(x))
    op.register_autograd(backward, setup_context=setup_context)
    return op


def save_twice(ctx, inputs, output):
    ctx.save_for_backward(inputs[0] * 2)


def keep_twice(ctx, inputs, output):
    ctx.twice = inputs[0] * 2


def save_mask(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], (inputs[0] > 0).to(inputs[0].dtype))


def save_detached(ctx, inputs, output):
    ctx.save_for_backward(inputs[0].detach() * 2)


OPS = {
    "saved": declare("saved", lambda x: (x * 2) ** 2, lambda ctx, grad: 4 * ctx.saved_tensors[0] * grad, save_twice),
    "attribute": declare("attribute", lambda x: (x * 2) ** 2, lambda ctx, grad: 4 * ctx.twice * grad, keep_twice),
    "mask": declare(
        "mask",
        lambda x: 4 * x.relu() ** 2,
        lambda ctx, grad: 8 * ctx.saved_tensors[0] * ctx.saved_tensors[1] * grad,
        save_mask,
    ),
    "list": declare(
        "list",
        lambda x, others: (x * 2) ** 2,
        lambda ctx, grad: (4 * ctx.saved_tensors[0] * grad, [None]),
        save_twice,
        "(Tensor x, Tensor[] others) -> Tensor",
    ),
}


def call(name, x):
    return OPS[name](x, [x.detach()]) if name == "list" else OPS[name](x)


def eager(f):
    for _ in range(3):
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad((f(x) + x**2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    return second - 2


X = torch.tensor([1.0, 2.0], dtype=torch.float64)
WAYS = {
    "eager": eager,
    "autograd.functional": lambda f: torch.autograd.functional.hessian(lambda x: f(x).sum(), X).diagonal(),
    "func.hessian": lambda f: torch.func.hessian(lambda x: f(x).sum())(X).diagonal(),
    "reverse over reverse": lambda f: torch.func.jacrev(torch.func.jacrev(lambda x: f(x).sum()))(X).diagonal(),
    "forward over reverse": lambda f: torch.func.jvp(torch.func.grad(lambda x: f(x).sum()), (X,), (X * 0 + 1,))[1],
    "forward over forward": lambda f: torch.func.jacfwd(torch.func.jacfwd(lambda x: f(x).sum()))(X).diagonal(),
    "compiled": lambda f: torch.compile(torch.func.hessian(lambda x: f(x).sum()), backend="aot_eager")(X).diagonal(),
}


@pytest.mark.usefixtures("both_calls")
@each("way", WAYS)
@each("name", OPS)
def test_second_derivatives_follow_what_setup_context_computes(name, way):
    torch.testing.assert_close(WAYS[way](lambda x: call(name, x)), torch.full_like(X, 8))


def exp(name, save, read):
    return declare(name, lambda x, *_: x.exp(), lambda ctx, grad: read(ctx) * grad, save)


def save_output(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output * 2)


def keep_output(ctx, inputs, output):
    ctx.twice = [output * 2 + 0 * inputs[0]]


FROM_OUTPUTS = {
    "saved": exp("saved_output", save_output, lambda ctx: ctx.saved_tensors[1] / 2),
    "attribute": exp("kept_output", keep_output, lambda ctx: ctx.twice[0] / 2),
}
REFUSED = ("eager", "autograd.functional")


@pytest.mark.usefixtures("both_calls")
@each("way", WAYS)
@each("name", FROM_OUTPUTS)
def test_second_derivatives_follow_what_setup_context_computes_from_outputs_or_raise(name, way):
    if way in REFUSED:
        with pytest.raises(GradientUnavailable, match="what setup_context computes from an output"):
            WAYS[way](FROM_OUTPUTS[name])
    else:
        torch.testing.assert_close(WAYS[way](FROM_OUTPUTS[name]), X.exp())


@pytest.mark.usefixtures("both_calls")
@pytest.mark.parametrize("name", FROM_OUTPUTS)
def test_first_derivatives_of_what_is_computed_from_outputs(name):
    op = FROM_OUTPUTS[name]
    compiled = torch.compile(lambda x: op(x).sum(), backend="aot_eager", fullgraph=True)
    for f in (lambda x: op(x).sum(),) * 3 + (compiled,):
        x = X.clone().requires_grad_()
        f(x).backward()
        torch.testing.assert_close(x.grad, X.exp())
    x = X.clone().requires_grad_()
    with torch.autograd.forward_ad.dual_level():
        dual = op(torch.autograd.forward_ad.make_dual(x, X))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, X * X.exp())


@pytest.mark.usefixtures("both_calls")
@pytest.mark.parametrize("name", FROM_OUTPUTS)
def test_what_is_computed_from_outputs_is_freed(name):
    for _ in range(3):
        x = X.clone().requires_grad_()
        result = FROM_OUTPUTS[name](x)
        output = weakref.ref(result)
        del result

        assert output() is None


@pytest.mark.usefixtures("both_calls")
def test_an_output_that_is_saved_as_it_is_is_followed():
    def save(ctx, inputs, output):
        ctx.save_for_backward(output, (output > 0).to(output.dtype))

    op = exp("saved_as_it_is", save, lambda ctx: ctx.saved_tensors[0] * ctx.saved_tensors[1])

    torch.testing.assert_close(eager(op), X.exp())


def test_the_message_says_what_to_save():
    assert_expected_inline(
        message(lambda: eager(FROM_OUTPUTS["saved"])),
        """\
GradientUnavailable: computed::saved_output: a second derivative needs what setup_context computes from an output
  rule       FILE.py:LINE, backward
  declared   FILE.py:LINE
  do         save the output with ctx.save_for_backward, and compute the same from it in the backward""",
    )


@pytest.mark.usefixtures("both_calls")
def test_what_is_detached_is_a_constant():
    op = declare("detached", lambda x: (x * 2) ** 2, lambda ctx, grad: 4 * ctx.saved_tensors[0] * grad, save_detached)

    assert [0.0, 0.0] == eager(op).tolist()


@pytest.mark.usefixtures("both_calls")
def test_kernels_and_callers_keep_their_grad_mode():
    modes = []

    def setup(ctx, inputs, output):
        modes.append(torch.is_grad_enabled())

    op = declare("modes", lambda x: modes.append(torch.is_grad_enabled()) or x * 2, lambda ctx, grad: grad * 2, setup)
    for _ in range(2):
        modes.clear()
        op(X.clone().requires_grad_())

        assert [False, True] == modes
        assert torch.is_grad_enabled()
