"""Where a hand-written autograd.Function loses a gradient, a check or memory without a word, an op here does not."""

import gc
import weakref

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd import GradientError, Sample, custom_op


def rand(*shape, dtype=torch.float64):
    return torch.rand(*(shape or (3,)), dtype=dtype, requires_grad=True)


def full(value, *shape):
    return torch.full(shape or (3,), value, dtype=torch.float64)


def numpy_of(x):
    return x.detach().numpy()


# -------------------------------------------------------------------------------- F03, F04: gradients of a wrong kind


@custom_op("ftraps::lenient")
def lenient(x: Tensor, kind: str) -> Tensor:
    return x * 1


def _setup(ctx, inputs, output):
    ctx.kind = inputs[1]


LENIENT = {"broadcast": lambda g: g.expand(4, 3), "float32": lambda g: g.float(), "long": lambda g: g.long()}
STRICT = {"too small": lambda g: g.sum(), "complex": lambda g: g + 0j}
lenient.register_autograd(lambda ctx, grad: ((LENIENT | STRICT)[ctx.kind](grad), None), setup_context=_setup)


@each(("kind", "expected"), [("broadcast", 4.0), ("float32", 1.0), ("long", 1.0)])
def test_the_drop_in_half_is_as_lenient_as_the_engine(kind, expected):
    x = rand()
    lenient(x, kind).sum().backward()

    assert torch.equal(full(expected), x.grad)


@each("kind", STRICT)
def test_the_drop_in_half_raises_where_the_engine_does(kind):
    with pytest.raises(RuntimeError):
        lenient(rand(), kind).sum().backward()


# ------------------------------------------------------------------------------------------ F06, F07: what is saved


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


# --------------------------------------------------------------------------------- F09: once differentiable


@custom_op("ftraps::once")
def once(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy_of(x) ** 3)


@once.register_backward(once_differentiable=True)
def _(grad, x):
    return 3 * grad * x**2


def test_a_second_derivative_is_refused_when_it_is_asked_for_and_not_before():
    x = rand()
    (g,) = torch.autograd.grad(once(x).sum(), x, create_graph=True)

    assert torch.allclose(3 * x.detach() ** 2, g.detach())
    with pytest.raises(GradientError, match="declared once-differentiable"):
        (g.sum() + x.sum()).backward()


# -------------------------------------------------------------------------------------------- F10: incoming gradients


@custom_op("ftraps::doubles_in_place")
def doubles_in_place(x: Tensor) -> Tensor:
    return x * 2


@doubles_in_place.register_backward
def _(grad):
    return grad.mul_(2)


def test_check_finds_a_backward_that_writes_to_its_incoming_gradient():
    report = doubles_in_place.check([Sample(rand())], checks=["cotangents"], raise_on_failure=False)

    [result] = report.results
    assert "failed" == result.status
    assert "the backward writes to the incoming gradient of output 0, which belongs to the engine" in result.message


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
