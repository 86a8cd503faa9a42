"""A backward may leave out the last gradients if their arguments have defaults, as in torch.library.

There a backward returns one gradient per argument that the dispatcher passes on, and the dispatcher leaves out trailing
arguments that equal their defaults. Here it returns as many in every call.
"""

import pytest
import torch
from tables import each
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import GradientError, custom_op

LIBRARIES = {"torch.library": torch.library.custom_op, "custom_autograd": custom_op}


def scaled(x: Tensor, w: Tensor, k: int = 2) -> Tensor:
    return x * w * k


def shifted(x: Tensor, w: Tensor, b: Tensor | None = None, k: int = 2) -> Tensor:
    return x * w * k if b is None else x * w * k + b


def keyword(x: Tensor, w: Tensor, k: int = 2, *, unused: float = 1.0) -> Tensor:
    return x * w * k


def listed(xs: list[Tensor], k: int = 2) -> Tensor:
    return xs[0] * xs[1] * k


def listed_first(xs: list[Tensor], w: Tensor, k: int = 2) -> Tensor:
    return xs[0] * w * k


def setup(ctx, inputs, output, keyword_only_inputs=None):
    first, second = inputs[0] if len(inputs) == 2 else (inputs[0], inputs[1])
    ctx.k = inputs[-1]
    ctx.save_for_backward(first[0] if isinstance(first, list) else first, second)


def parked(ctx, inputs, output, keyword_only_inputs=None):
    """Keeps a tensor as an attribute, which the general backward serves."""
    setup(ctx, inputs, output)
    ctx.parked = inputs[1]


def both(ctx, grad):
    x, w = ctx.saved_tensors
    return grad * w * ctx.k, grad * x * ctx.k


def in_list(ctx, grad):
    x, w = both(ctx, grad)
    return [x], w


def sole(ctx, grad):
    return list(both(ctx, grad))


def sole_in_tuple(ctx, grad):
    return (list(both(ctx, grad)),)


def two(x, w):
    return x, w


def together(x, w):
    return ([x, w],)


def apart(x, w):
    return [x], w


def declare(library, function, backward, setup=setup):
    op = LIBRARIES[library](
        f"fewer_gradients_{library.replace('.', '_')}::{function.__name__}", function, mutates_args=()
    )
    op.register_autograd(backward, setup_context=setup)
    return op


def inputs():
    return (torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True))


ROWS = {
    "number": (scaled, both, two),
    "optional tensor": (shifted, both, two),
    "keyword-only": (keyword, both, two),
    "list alone": (listed, sole, together),
    "list alone in a tuple": (listed, sole_in_tuple, together),
    "list first": (listed_first, in_list, apart),
}


@each(("function", "backward", "arrange"), ROWS.values(), ids=ROWS)
@each("library", LIBRARIES)
def test_a_call_that_leaves_defaults_out(library, function, backward, arrange):
    x, w = inputs()
    declare(library, function, backward)(*arrange(x, w)).sum().backward()

    assert [6.0, 4.0] == [x.grad.item(), w.grad.item()]


@each(("function", "backward", "arrange"), ROWS.values(), ids=ROWS)
@each("setup", [setup, parked], ids=["quick", "general"])
def test_a_call_that_gives_another_value(function, backward, arrange, setup):
    x, w = inputs()
    declare("custom_autograd", function, backward, setup)(*arrange(x, w), k=5).sum().backward()

    assert [15.0, 10.0] == [x.grad.item(), w.grad.item()]


@pytest.mark.parametrize("setup", [setup, parked], ids=["quick", "general"])
def test_transforms_read_the_gradients_alike(setup):
    op = declare("custom_autograd", scaled, both, setup)
    x, w = torch.tensor([2.0]), torch.tensor([3.0])

    assert_close(torch.func.grad(lambda x, w: op(x, w).sum(), (0, 1))(x, w), (2 * w, 2 * x))
    assert_close(torch.func.jvp(op, (x, w), (torch.ones(1), torch.ones(1)))[1], 2 * w + 2 * x)
    assert_close(torch.func.hessian(lambda x: op(x, x).sum())(x), torch.tensor([[4.0]]))


@pytest.mark.parametrize("setup", [setup, parked], ids=["quick", "general"])
def test_an_optional_tensor_that_needs_no_gradient(setup):
    x, w = inputs()
    declare("custom_autograd", shifted, both, setup)(x, w, torch.ones(1)).sum().backward()

    assert [6.0, 4.0] == [x.grad.item(), w.grad.item()]


@pytest.mark.parametrize("setup", [setup, parked], ids=["quick", "general"])
def test_an_optional_tensor_that_needs_a_gradient_raises(setup):
    x, w = inputs()
    result = declare("custom_autograd", shifted, both, setup)(x, w, torch.ones(1, requires_grad=True))

    with pytest.raises(
        GradientError, match=r"wrong number of gradients\n  expected   4: 'x', 'w', 'b', 'k'\n  found +2"
    ):
        result.sum().backward()


@each("library", LIBRARIES)
@each("returned", [lambda x, w: x, lambda x, w: (x,), lambda x, w: None, lambda x, w: ()],
                         ids=["tensor", "tuple of one", "None", "empty"])  # fmt: skip
@each("needs", [True, False])
def test_an_argument_without_a_default_is_never_left_out(library, returned, needs):
    op = declare(library, scaled, lambda ctx, grad: returned(*both(ctx, grad)))
    result = op(torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=needs))

    with pytest.raises(RuntimeError, match="number of gradients"):
        result.sum().backward()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("given", [(), (3,)], ids=["left out", "given"])
def test_setup_context_has_every_input(library, given):
    seen = []

    def keep(ctx, inputs, output):
        seen.extend(inputs[2:])
        setup(ctx, inputs, output)

    declare(library, scaled, lambda ctx, grad: (*both(ctx, grad), None), keep)(*inputs(), *given)

    assert ([*given] or [2]) == seen


def boxed(xs: dict[str, Tensor], w: Tensor, k: int = 2, b: Tensor | None = None) -> Tensor:
    return xs["a"] * w * k


def boxed_setup(ctx, inputs, output):
    xs, w, ctx.k, _ = inputs
    ctx.save_for_backward(xs["a"], w)


BOXED = {
    "two": (lambda x, w: ({"a": x}, w), None),
    "three": (lambda x, w: ({"a": x}, w, None), None),
    "six": (lambda x, w: ({"a": x}, w, None, None, None, None), None),
    "container only": (lambda x, w: {"a": x}, "1"),
    "one": (lambda x, w: ({"a": x},), "1"),
    "gradient too many": (lambda x, w: ({"a": x}, w, None, None, w), "5"),
}


@each(("returned", "found"), BOXED.values(), ids=BOXED)
def test_an_op_with_containers(returned, found):
    op = custom_op("fewer_gradients::boxed", boxed)
    op.register_autograd(lambda ctx, grad: returned(*both(ctx, grad)), setup_context=boxed_setup)
    x, w = inputs()
    result = op({"a": x}, w, 5)

    if found is None:
        result.sum().backward()
        assert [15.0, 10.0] == [x.grad.item(), w.grad.item()]
    else:
        with pytest.raises(
            GradientError, match=f"wrong number of gradients\n.*'xs', 'w', 'k', 'b'\n  found +{found}\n"
        ):
            result.sum().backward()


def test_an_op_with_containers_and_a_gradient_that_is_needed():
    op = custom_op("fewer_gradients::boxed", boxed)
    op.register_autograd(lambda ctx, grad: BOXED["two"][0](*both(ctx, grad)), setup_context=boxed_setup)
    x, w = inputs()

    with pytest.raises(GradientError, match="wrong number of gradients"):
        op({"a": x}, w, 5, torch.ones(1, requires_grad=True)).sum().backward()
