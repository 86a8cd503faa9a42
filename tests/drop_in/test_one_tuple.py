"""An op that returns `tuple[Tensor]` returns a tuple of one in every mode, as torch.library's does."""

import typing

import pytest
import torch
from tables import each
from torch import Tensor
from ways import Calls

from custom_autograd import DeclarationError, Sample, custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")

X = torch.tensor([1.0, 2.0], dtype=torch.float64)


@custom_op("one_tuple::square")
def square(x: Tensor) -> tuple[Tensor]:
    return (x * x,)


@square.register_fake
def _(x):
    return (torch.empty_like(x),)


@square.register_backward
def _(grad, x):
    return 2 * grad * x


@square.register_samples
def _(make):
    yield Sample(make(3, 2))


@custom_op("one_tuple::drop_in")
def drop_in(x: Tensor) -> tuple[Tensor]:
    return (x * x,)


drop_in.register_fake(lambda x: (torch.empty_like(x),))


def setup_context(ctx, inputs, output):
    (result,) = output
    ctx.save_for_backward(*inputs, result)


def backward(ctx, grad):
    x, result = ctx.saved_tensors
    return 2 * grad * result / x


drop_in.register_autograd(backward, setup_context=setup_context)


@custom_op("one_tuple::derived", reference=True)
def derived(x: Tensor) -> tuple[Tensor]:
    return (x * x,)


@custom_op("one_tuple::ruled", reference=True)
def ruled(x: Tensor) -> tuple[Tensor]:
    return (x * x,)


@ruled.register_vmap
def _(info, in_dims, x):
    return (x * x,), (in_dims[0],)


class Named(typing.NamedTuple):
    y: Tensor


@custom_op("one_tuple::named")
def named(x: Tensor) -> Named:
    return Named(x * x)


OPS = {"by name": square, "drop-in": drop_in, "derived": derived, "vmap rule": ruled}


def reverse(call):
    def run(x):
        x = x.clone().requires_grad_()
        (y,) = call(x)
        return torch.autograd.grad(y, x, torch.ones_like(y))

    return run


WAYS = {
    "eager": (lambda op: op, X * X),
    "eager with a gradient": (lambda op: lambda x: op(x.clone().requires_grad_()), X * X),
    "torch.ops": (lambda op: op.overload, X * X),
    "packet": (lambda op: getattr(torch.ops.one_tuple, op.name.partition("::")[2]), X * X),
    "apply": (lambda op: op.function.apply, X * X),
    "no_grad": (lambda op: torch.no_grad()(op), X * X),
    "compiled": (lambda op: torch.compile(op, backend="aot_eager", fullgraph=True), X * X),
    "compiled with a gradient": (
        lambda op: reverse(torch.compile(op, backend="aot_eager", fullgraph=True)),
        2 * X,
    ),
    "exported": (
        lambda op: torch.export.export(Calls(op), (X,)).module(),
        X * X,
    ),
    "vmap": (torch.vmap, X * X),
    "reverse": (reverse, 2 * X),
    "grad": (lambda op: lambda x: (torch.func.grad(lambda x: op(x)[0].sum())(x),), 2 * X),
    "jvp": (lambda op: lambda x: torch.func.jvp(op, (x,), (torch.ones_like(x),))[1], 2 * X),
    "jvp of vmap": (lambda op: lambda x: torch.func.jvp(torch.vmap(op), (x,), (torch.ones_like(x),))[1], 2 * X),
    "jacrev": (torch.func.jacrev, torch.diag(2 * X)),
}


@each("way", WAYS)
@each("op", OPS.values(), ids=OPS)
def test_every_mode_returns_a_tuple_of_one(op, way):
    make, expected = WAYS[way]
    for _ in range(3):  # the first call proves what the later ones rely on
        found = make(op)(X)

    assert isinstance(found, tuple)
    assert 1 == len(found)
    torch.testing.assert_close(found[0].detach(), expected)


def test_it_is_the_schema_of_torch_library():
    theirs = torch.library.custom_op("one_tuple::theirs", mutates_args=())(square.__wrapped__)

    assert theirs._schema == square.schema.text


@pytest.mark.slow
def test_all_checks_pass():
    square.check()


def test_it_is_compiled_once_for_all_sizes():
    graphs = []
    torch.compiler.reset()

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(square, backend=backend, dynamic=True, fullgraph=True)
    for size in (3, 4, 5):
        compiled(torch.ones(size, 2 * size))

    assert 1 == len(graphs)


def test_it_follows_an_autocast_policy():
    op = custom_op("one_tuple::cast", square.__wrapped__)
    op.register_autocast("cpu", torch.bfloat16, output=torch.float32)

    with torch.autocast("cpu", torch.bfloat16):
        (found,) = op(torch.tensor([1.0, 3.0]))

    torch.testing.assert_close(found, torch.tensor([1.0, 9.0]))


def test_a_batch_is_looped_over_without_a_rule():
    (found,) = torch.vmap(torch.vmap(square))(torch.ones(2, 3) * 3)

    torch.testing.assert_close(found, torch.full((2, 3), 9.0))


def test_it_has_no_variants():
    with pytest.raises(DeclarationError, match="it returns a tuple of one"):
        square.inplace  # noqa: B018 - the attribute raises


def test_a_tuple_of_one_among_several_results_is_refused():
    with pytest.raises(DeclarationError, match="a tuple of one among several results"):
        custom_op("one_tuple::nested", lambda x: x, schema="(Tensor x) -> ((Tensor), Tensor)")


def test_a_named_tuple_of_one_is_made_of_its_value():
    for _ in range(3):  # the way of the later calls is native
        found = named(X)

        assert "Named(y=tensor([1., 4.], dtype=torch.float64))" == repr(found)
