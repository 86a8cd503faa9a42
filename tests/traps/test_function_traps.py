"""Where a hand-written autograd.Function loses a gradient, a check or memory without a word, an op here does not."""

import gc
import weakref

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd import GradientError, Sample, custom_op


def rand(*shape, dtype=torch.float64):
    return torch.rand(*(shape or (3,)), dtype=dtype, requires_grad=True)


def full(value, *shape):
    return torch.full(shape or (3,), value, dtype=torch.float64)


def numpy_of(x):
    return x.detach().numpy()


# ------------------------------------------------------------------------------------------ F01, F02: lists of tensors


@custom_op("ftraps::multiples")
def multiples(x: Tensor, n: int) -> list[Tensor]:
    return [torch.from_numpy(numpy_of(x) * (i + 1)) for i in range(n)]


@multiples.register_backward
def _(grad):
    return sum((i + 1) * g for i, g in enumerate(grad))


@custom_op("ftraps::total")
def total(xs: list[Tensor]) -> Tensor:
    return torch.from_numpy(sum(numpy_of(x) for x in xs) * 1.0)


@total.register_backward
def _(grad, needs):
    return [grad if need else None for need in needs.xs]


def test_a_list_of_outputs_keeps_its_gradients():
    x = rand()
    a, _b, c = multiples(x, 3)
    (a + c).sum().backward()

    assert torch.equal(full(4.0), x.grad)


def test_a_list_of_inputs_keeps_its_gradients():
    xs = [rand(), torch.ones(3, dtype=torch.float64), rand()]
    total(xs).sum().backward()

    assert [True, False, True] == [x.grad is not None for x in xs]
    assert torch.equal(full(1.0), xs[2].grad)


# --------------------------------------------------------------------------- F03, F04: gradients of a wrong kind


@custom_op("ftraps::wrong")
def wrong(x: Tensor, kind: str) -> Tensor:
    return x * 1


BAD = {
    "broadcast": lambda g: g.expand(4, 3),
    "too small": lambda g: g.sum(),
    "float32": lambda g: g.float(),
    "long": lambda g: g.long(),
    "bool": lambda g: g.bool(),
    "complex": lambda g: g + 0j,
    "meta": lambda g: g.to("meta"),
}


@wrong.register_backward
def _(grad, kind):
    return BAD[kind](grad)


@each(
    ("kind", "problem"),
    [
        ("broadcast", "wrong shape"),
        ("too small", "wrong shape"),
        ("float32", "wrong dtype"),
        ("long", "wrong dtype"),
        ("bool", "wrong dtype"),
        ("complex", "wrong dtype"),
        ("meta", "wrong device"),
    ],
)
def test_a_gradient_that_does_not_match_its_input_raises(kind, problem):
    with pytest.raises(GradientError, match=f"the gradient of 'x' .*{problem}"):
        wrong(rand(), kind).sum().backward()


@custom_op("ftraps::lenient")
def lenient(x: Tensor, kind: str) -> Tensor:
    return x * 1


def _setup(ctx, inputs, output):
    ctx.kind = inputs[1]


lenient.register_autograd(lambda ctx, grad: (BAD[ctx.kind](grad), None), setup_context=_setup)


@pytest.mark.parametrize(("kind", "expected"), [("broadcast", 4.0), ("float32", 1.0), ("long", 1.0)])
def test_the_drop_in_half_is_as_lenient_as_the_engine(kind, expected):
    x = rand()
    lenient(x, kind).sum().backward()

    assert torch.equal(full(expected), x.grad)


@pytest.mark.parametrize("kind", ["too small", "complex"])
def test_the_drop_in_half_raises_where_the_engine_does(kind):
    with pytest.raises(RuntimeError):
        lenient(rand(), kind).sum().backward()


# ------------------------------------------------------------------------------------ F05: gradients nobody asked for


def test_a_gradient_that_is_not_needed_is_neither_computed_nor_read():
    ran = []

    @custom_op("ftraps::product")
    def product(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    @product.register_backward
    def _(grad, a, b):
        return {"a": grad * b, "b": lambda: ran.append(1)}

    a = rand()
    product(a, torch.full((3,), 2.0, dtype=torch.float64)).sum().backward()

    assert torch.equal(full(2.0), a.grad)
    assert not ran


# ------------------------------------------------------------------------------------------ F06, F07: what is saved


@custom_op("ftraps::saves_number")
def saves_number(x: Tensor) -> Tensor:
    return x * 1


saves_number.register_autograd(
    lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], 3)
)


def test_saving_what_is_no_tensor_raises():
    with pytest.raises(TypeError, match="argument 1 is of type int"):
        saves_number(rand())


@custom_op("ftraps::parks")
def parks(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy_of(x) ** 2)


def _park(ctx, inputs, output):
    ctx.x = inputs[0]
    ctx.nested = {"output": [output, 5]}


def _parked(ctx, grad):
    assert 5 == ctx.nested["output"][1]
    return 2 * grad * ctx.x + 0 * ctx.nested["output"][0]


parks.register_autograd(_parked, setup_context=_park)


def test_a_tensor_parked_on_ctx_is_seen_by_saved_tensor_hooks():
    packed = []
    x = rand()
    with saved_tensors_hooks(lambda t: packed.append(t.detach().clone()) or t, lambda t: t):
        y = parks(x)
    y.sum().backward()

    assert 2 == len(packed)
    assert torch.equal(2 * x.detach(), x.grad)


def test_a_tensor_parked_on_ctx_is_seen_by_the_version_check():
    z = rand() * 1
    y = parks(z)
    z.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_parked_tensors_unpack_to_what_the_hooks_return():
    x = rand()
    with saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t * 10):
        y = parks(x)
    y.sum().backward()

    assert torch.allclose(20 * x.detach(), x.grad)


@custom_op("ftraps::cubes", outputs=("out", "square"), hidden=("square",))
def cubes(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(numpy_of(x) ** 3), torch.from_numpy(numpy_of(x) ** 2)


@cubes.register_backward
def _(grad_out, x, square, out, grad_square):
    return grad_out * 3 * square + 0 * out + 2 * x * grad_square


def test_saved_tensor_hooks_see_every_save_of_a_rule():
    packed = []
    x = rand()
    with saved_tensors_hooks(lambda t: packed.append(t.detach().clone()) or t.detach(), lambda t: t):
        y = cubes(x)
    expected = [x.detach() ** power for power in (1, 2, 3)]
    y.sum().backward()

    assert 3 == len(packed)
    assert all(any(torch.allclose(one, other) for other in packed) for one in expected)
    assert torch.allclose(3 * x.detach() ** 2, x.grad)


def _graph_of(op):
    """Weak references to the node of a call and to what it may hold, after everything else was dropped."""
    x = rand() * 1
    y = op(x)
    return [life_of(y.grad_fn), weakref.ref(x), weakref.ref(y)]


class Life:
    """Lives as long as the node in whose metadata it is; a native node itself takes no weak references."""


def life_of(node):
    node.metadata["life"] = life = Life()
    return weakref.ref(life)


@pytest.fixture
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@custom_op("ftraps::exp")
def exp(x: Tensor) -> Tensor:
    return torch.from_numpy(np.exp(numpy_of(x)))


@exp.register_backward
def _(grad, output):
    return grad * output


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("op", [parks, cubes, exp], ids=["parked on ctx", "input, output and hidden", "output"])
def test_a_dropped_graph_is_freed_at_once(op):
    assert [None, None, None] == [reference() for reference in _graph_of(op)]


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_graph_is_freed_after_its_backward_too():
    y = cubes(rand())
    y.sum().backward()
    reference = life_of(y.grad_fn)
    del y

    assert reference() is None


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("op", [parks, cubes, exp], ids=["parked on ctx", "input, output and hidden", "output"])
def test_saved_tensors_are_freed_by_the_backward(op):
    z = rand() * 1
    reference = weakref.ref(z)
    y = op(z)
    del z
    y.sum().backward()

    assert reference() is None


# ----------------------------------------------------------------------------------------------- F08: intermediates


@custom_op("ftraps::exp_squared", outputs=("out", "half"), hidden=("half",))
def exp_squared(x: Tensor) -> tuple[Tensor, Tensor]:
    half = torch.from_numpy(np.exp(numpy_of(x)))
    return half**2, half


@exp_squared.register_backward
def _(grad_out, half, grad_half):
    return 2 * grad_out * half**2 + grad_half * half


def test_a_saved_intermediate_is_differentiated_again():
    x = rand()

    assert gradcheck(exp_squared, (x,))
    assert gradgradcheck(exp_squared, (x,))


@custom_op("ftraps::computed_intermediate")
def computed_intermediate(x: Tensor) -> Tensor:
    return torch.from_numpy(np.exp(numpy_of(x)) ** 2)


computed_intermediate.register_autograd(
    lambda ctx, grad: 2 * grad * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0].exp()),
)


def test_an_intermediate_that_setup_context_made_is_differentiated_again():
    x = rand()

    assert gradcheck(computed_intermediate, (x,))
    assert gradgradcheck(computed_intermediate, (x,))


# --------------------------------------------------------------------------------- F09, F21: once differentiable


@custom_op("ftraps::once")
def once(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy_of(x) ** 3)


@once.register_backward(once_differentiable=True)
def _(grad, x):
    return 3 * grad * x**2


def _cube_gradient(x):
    return 3 * x.detach() ** 2


def test_create_graph_alone_is_no_second_derivative():
    x = rand()
    (g,) = torch.autograd.grad(once(x).sum(), x, create_graph=True)

    assert torch.allclose(_cube_gradient(x), g.detach())


def test_a_second_derivative_is_refused_when_it_is_asked_for():
    x = rand()
    (g,) = torch.autograd.grad(once(x).sum(), x, create_graph=True)

    with pytest.raises(GradientError, match="declared once-differentiable"):
        (g.sum() + x.sum()).backward()


@pytest.mark.parametrize("transform", ["grad", "jacrev"])
def test_first_derivatives_of_torch_func_are_allowed(transform):
    x = torch.rand(3, dtype=torch.float64)
    found = {
        "grad": lambda: torch.func.grad(lambda t: once(t).sum())(x),
        "jacrev": lambda: torch.func.jacrev(once)(x).diagonal(),
    }[transform]()

    assert torch.allclose(_cube_gradient(x), found)


def test_second_derivatives_of_torch_func_are_refused():
    def loss(t):
        return once(t).sum()

    with pytest.raises(GradientError, match="declared once-differentiable"):
        torch.func.grad(lambda t: torch.func.grad(loss)(t).sum())(torch.rand(3))


def test_forward_mode_is_not_derived_from_a_once_differentiable_backward():
    x = torch.rand(3)
    with pytest.raises(GradientError, match="once-differentiable"):
        torch.func.jvp(once, (x,), (x,))


# -------------------------------------------------------------------------------------------- F10: incoming gradients


@custom_op("ftraps::doubles_in_place")
def doubles_in_place(x: Tensor) -> Tensor:
    return x * 2


@doubles_in_place.register_backward
def _(grad):
    return grad.mul_(2)


def test_check_finds_a_backward_that_writes_to_its_incoming_gradient():
    report = doubles_in_place.check([Sample(rand())], checks=["cotangents"], raise_on_failure=False)

    assert any(r.status == "failed" and "grad" in r.message for r in report.results)


# ------------------------------------------------------------------------------------------------- F12, F13: aliasing


@custom_op("ftraps::increment_", mutates_args=("x",))
def increment_(x: Tensor) -> None:
    numpy_of(x).__iadd__(1)


@increment_.register_backward
def _(grad):
    return grad


def test_a_declared_numpy_write_is_seen_by_the_version_check():
    z = rand() * 1
    y = z * z
    increment_(z)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_declared_numpy_write_is_differentiated():
    x = rand()
    z = x * 1
    increment_(z)
    (z * z).sum().backward()

    assert torch.allclose(2 * (x.detach() + 1), x.grad)


# ------------------------------------------------------------------------------ F14, F15: what carries no gradient


INCOMING = []


@custom_op("ftraps::mixed", outputs=("y", "count", "n", "fixed"), non_differentiable=("fixed",))
def mixed(x: Tensor) -> tuple[Tensor, int, Tensor, Tensor]:
    return x * 2, 5, (x * 3).long(), x * 4


def _mixed_backward(ctx, *grads):
    INCOMING.append([None if g is None else (g.dtype, float(g.abs().sum())) for g in grads])
    return grads[0] * 2


mixed.register_autograd(_mixed_backward)


def test_outputs_without_a_gradient_are_marked_by_name():
    y, count, n, fixed = mixed(rand())

    assert (True, False, False) == (y.requires_grad, n.requires_grad, fixed.requires_grad)
    assert 5 == count


def test_a_drop_in_backward_gets_one_gradient_per_output():
    INCOMING.clear()
    x = rand()
    mixed(x)[0].sum().backward()

    assert [(torch.float64, 3.0), None, (torch.int64, 0.0), (torch.float64, 0.0)] == INCOMING[0]
    assert torch.equal(full(2.0), x.grad)


@custom_op("ftraps::mixed_by_name", outputs=("y", "count", "n", "fixed"), non_differentiable=("n", "fixed"))
def mixed_by_name(x: Tensor) -> tuple[Tensor, int, Tensor, Tensor]:
    return x * 2, 5, (x * 3).long(), x * 4


@mixed_by_name.register_backward
def _(grad, count, n, fixed):
    return grad * count * (n >= 0) * (fixed / fixed)


def test_outputs_without_a_gradient_can_be_named_by_rules():
    x = rand()
    mixed_by_name(x)[0].sum().backward()

    assert torch.equal(full(5.0), x.grad)


def test_an_output_that_carries_no_gradient_cannot_be_differentiated():
    with pytest.raises(RuntimeError, match="does not require grad"):
        mixed_by_name(rand())[3].sum().backward()


# -------------------------------------------------------------------------------------------------- F17: full arity


@custom_op("ftraps::scaled")
def scaled(x: Tensor, k: float = 3.0, flag: bool = False) -> Tensor:
    return x * k


scaled.register_autograd(lambda ctx, grad: (grad * 3, None, None))


def test_a_backward_answers_for_the_full_argument_list_however_it_was_called():
    for args in ((), (3.0,), (3.0, False)):
        x = rand()
        scaled(x, *args).sum().backward()

        assert torch.equal(full(3.0), x.grad)


# ----------------------------------------------------------------------------------------------- F19: backward twice


@custom_op("ftraps::saves_nothing")
def saves_nothing(x: Tensor) -> Tensor:
    return x * 1


@saves_nothing.register_backward
def _(grad):
    return grad


@pytest.mark.parametrize("op", [exp, parks, cubes], ids=["by name", "drop-in", "hidden"])
def test_a_second_backward_says_that_the_graph_is_freed(op):
    y = op(rand())
    y.backward(full(1.0))

    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward(full(1.0))


def test_a_second_backward_where_nothing_was_saved_is_right():
    x = rand()
    y = saves_nothing(x)
    y.backward(full(1.0))
    y.backward(full(1.0))

    assert torch.equal(full(2.0), x.grad)


def test_retain_graph_allows_a_second_backward():
    x = rand()
    y = cubes(x)
    y.backward(full(1.0), retain_graph=True)
    y.backward(full(1.0))

    assert torch.allclose(6 * x.detach() ** 2, x.grad)


# --------------------------------------------------------------------------------------------- names of nodes


def test_the_node_is_named_after_the_op():
    assert "ftraps::cubesBackward" == cubes(rand()).grad_fn.name()
