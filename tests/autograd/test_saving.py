"""What is saved for backward is what the needed rules name, no more; rules see inputs, outputs, needs and meta."""

import gc
import weakref
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd import custom_op


def numpy_of(x):
    return x.detach().numpy()


def rand(*shape, requires_grad=True):
    return torch.rand(*(shape or (3,)), dtype=torch.float64, requires_grad=requires_grad)


@contextmanager
def saves():
    """The tensors that are packed while the context is open."""
    packed = []
    with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        yield packed


def _product(name):
    @custom_op(f"saving::{name}")
    def product(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return torch.from_numpy(numpy_of(x) * numpy_of(w))

    return product


product = _product("product")
product.register_grad("x")(lambda grad, w: grad * w)
product.register_grad("w")(lambda grad, x: grad * x)
product.register_grad("b")(lambda grad: grad)

whole = _product("whole")


@whole.register_backward
def _(grad, x, w):
    return {"x": lambda: grad * w, "w": lambda: grad * x, "b": None}


@pytest.mark.parametrize(
    ("x_needs", "w_needs", "expected"),
    [(True, True, {"x", "w"}), (True, False, {"w"}), (False, True, {"x"}), (False, False, set())],
)
def test_gradients_by_input_save_only_what_the_needed_ones_name(x_needs, w_needs, expected):
    x, w = rand(requires_grad=x_needs), rand(requires_grad=w_needs)
    with saves() as packed:
        product(x, w)

    assert expected == {"x" if t is x else "w" if t is w else "?" for t in packed}


def test_a_whole_backward_saves_all_that_it_names():
    x, w = rand(), rand(requires_grad=False)
    with saves() as packed:
        whole(x, w)

    assert {id(x), id(w)} == {id(t) for t in packed}


def test_the_activation_under_a_frozen_weight_is_not_kept():
    h = rand() * 1
    reference = weakref.ref(h)
    y = product(h, rand(requires_grad=False))
    gc.disable()
    del h
    try:
        assert reference() is None
    finally:
        gc.enable()
    assert y.requires_grad


def test_the_activation_under_a_trained_weight_is_kept():
    h = rand() * 1
    reference = weakref.ref(h)
    y = product(h, rand())
    del h

    assert reference() is not None
    assert y.requires_grad


def test_nothing_is_saved_where_no_gradient_is_recorded():
    with saves() as packed, torch.no_grad():
        product(rand(), rand())

    assert [] == packed


@each("call", [product, whole], ids=["by input", "whole"])
@each(("x_needs", "w_needs"), [(True, True), (True, False), (False, True)])
def test_gradients_are_right_whatever_is_needed(call, x_needs, w_needs):
    x, w = rand(requires_grad=x_needs), rand(requires_grad=w_needs)
    call(x, w).sum().backward()

    assert not x_needs or torch.equal(w.detach(), x.grad)
    assert not w_needs or torch.equal(x.detach(), w.grad)
    assert [x_needs, w_needs] == [x.grad is not None, w.grad is not None]


# ------------------------------------------------------------------------------------------ what a rule may return


RESULTS = {
    "dict": lambda gx, gw: {"x": gx(), "w": gw(), "b": None},
    "dict of callables": lambda gx, gw: {"w": gw, "x": gx, "b": None},
    "tuple": lambda gx, gw: (gx(), gw(), None),
    "list": lambda gx, gw: [gx(), gw(), None],
    "tuple of callables": lambda gx, gw: (gx, gw, lambda: None),
}


@pytest.mark.parametrize("shape", RESULTS)
def test_a_backward_may_return(shape):
    op = _product(f"returns_{shape.replace(' ', '_')}")
    op.register_backward(lambda grad, x, w: RESULTS[shape](lambda: grad * w, lambda: grad * x))
    x, w = rand(), rand()
    op(x, w).sum().backward()

    assert torch.equal(w.detach(), x.grad)
    assert torch.equal(x.detach(), w.grad)


def test_a_sole_input_needs_no_container():
    @custom_op("saving::sole")
    def sole(x: Tensor, n: int) -> Tensor:
        return x * n

    sole.register_backward(lambda grad, n: grad * n)
    x = rand()
    sole(x, 3).sum().backward()

    assert torch.equal(torch.full((3,), 3.0, dtype=x.dtype), x.grad)


def test_callables_run_only_where_a_gradient_is_needed():
    ran = []
    op = _product("lazily")

    @op.register_backward
    def _(grad, x, w):
        return {"x": lambda: ran.append("x") or grad * w, "w": lambda: ran.append("w") or grad * x, "b": lambda: 1 / 0}

    op(rand(requires_grad=False), rand()).sum().backward()

    assert ["w"] == ran


def test_a_gradient_for_several_inputs_runs_once_and_if_one_is_needed():
    ran = []
    op = _product("together")

    @op.register_grad("x", "w")
    def _(grad, x, w, needs):
        ran.append((needs.x, needs.w))
        return grad * w, grad * x

    op.register_grad("b")(lambda grad: {"b": ran.append("b")})
    x, w = rand(), rand()
    op(x, w).sum().backward()
    op(rand(requires_grad=False), w).sum().backward()
    op(rand(requires_grad=False), rand(requires_grad=False), rand()).sum().backward()

    assert [(True, True), (False, True), "b"] == ran


def test_none_is_a_gradient_of_zero():
    op = _product("zero")
    op.register_backward(lambda grad: {"x": None, "w": None, "b": None})
    x = rand()
    (op(x, rand()) + x).sum().backward()

    assert torch.equal(torch.ones(3, dtype=x.dtype), x.grad)


# --------------------------------------------------------------------------------------------------------- needs, meta


SEEN = {}


@custom_op("saving::told")
def told(x: Tensor, ws: list[Tensor], b: Tensor | None = None) -> Tensor:
    return torch.from_numpy(numpy_of(x) * 1)


@told.register_backward
def _(grad, needs, meta):
    SEEN.update(needs=(needs.x, needs.ws, needs.b), meta=meta)
    return {"x": grad, "ws": [torch.zeros(m.shape, dtype=m.dtype) for m in meta.ws], "b": None}


def test_needs_has_a_bool_per_input_and_a_list_for_a_list():
    told(rand(), [rand(), rand(requires_grad=False)]).sum().backward()

    assert (True, [True, False], False) == SEEN["needs"]


def test_meta_tells_of_tensors_without_keeping_them():
    x = rand(3, 4).t()
    h = x * 1
    reference = weakref.ref(h)
    y = told(h, [rand(5)])
    del h
    assert reference() is None
    y.sum().backward()

    meta = SEEN["meta"]
    assert (4, 3) == tuple(meta.x.shape)
    assert ((1, 4), 2, 2, 12) == (meta.x.stride(), meta.x.ndim, meta.x.dim(), meta.x.numel())
    assert (torch.float64, torch.device("cpu"), torch.strided) == (meta.x.dtype, meta.x.device, meta.x.layout)
    assert [(5,)] == [tuple(m.shape) for m in meta.ws]
    assert meta.b is None
    assert (4, 3) == tuple(meta.output.shape)


@custom_op("saving::mean")
def mean(x: Tensor) -> Tensor:
    return x.mean()


mean.register_fake(lambda x: x.new_empty(()))
mean.register_backward(lambda grad, meta: (grad / meta.x.numel()).expand(meta.x.shape).contiguous())


def test_the_number_of_elements_is_symbolic_in_a_graph(fresh_compiler):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(mean, backend=counter, dynamic=True)
    for size in (3, 5, 7):
        x = rand(size, 4)
        compiled(x).backward()
        assert torch.equal(torch.full_like(x, 1 / x.numel()), x.grad)

    assert 1 == counter.frame_count


def test_a_misspelt_name_is_answered_with_advice():
    """Of `needs` too: tests/messages/test_gradient_messages.py has the texts."""
    op = _product("misspelt")
    op.register_backward(lambda grad, meta: meta.outputs)

    with pytest.raises(AttributeError, match="did you mean 'output'"):
        op(rand(), rand()).sum().backward()


# -------------------------------------------------------------------------------------------------- incoming gradients


@custom_op("saving::two", outputs=("a", "b"))
def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.float() * 3


INCOMING = []


def _two_backward(grad_a, grad_b):
    INCOMING.append((grad_a, grad_b))
    return sum(2 * grad_a if grad is grad_a else 3 * grad.double() for grad in (grad_a, grad_b) if grad is not None)


@pytest.mark.parametrize("materialize", [True, False])
def test_undefined_gradients_are_zeros_or_none(materialize):
    two.register_backward(_two_backward, materialize_grads=materialize, replace=True)
    INCOMING.clear()
    x = rand()
    two(x)[0].sum().backward()
    _, grad_b = INCOMING[0]

    assert torch.equal(torch.full((3,), 2.0, dtype=x.dtype), x.grad)
    if materialize:
        assert (torch.float32, (3,), 0.0) == (grad_b.dtype, tuple(grad_b.shape), float(grad_b.sum()))
    else:
        assert grad_b is None


def test_a_backward_without_any_gradient_does_not_run():
    """An optional output that nobody uses: the engine may come with no gradient at all."""
    ran = []

    @custom_op("saving::never_asked")
    def op(x: Tensor) -> Tensor:
        return x * 1

    op.register_backward(lambda grad: ran.append(1) or grad)

    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return None

    x = rand()
    Undefined.apply(op(x)).sum().backward()

    assert [] == ran
    assert x.grad is None


# ------------------------------------------------------------------------------------------------- outputs and values


@custom_op("saving::kinds", outputs=("y", "n"))
def kinds(x: Tensor, k: float, flag: bool, dims: list[int], dtype: torch.dtype | None = None) -> tuple[Tensor, int]:
    return torch.from_numpy(np.exp(numpy_of(x))) * k, 7


@kinds.register_backward
def _(grad, y, n, k, flag, dims, dtype):
    SEEN.update(values=(n, k, flag, list(dims), dtype))
    return grad * y


def test_every_value_reaches_a_rule_as_it_was():
    x = rand()
    y, n = kinds(x, 2.0, True, [1, 2], torch.float16)
    y.sum().backward()

    assert 7 == n
    assert (7, 2.0, True, [1, 2], torch.float16) == SEEN["values"]
    assert torch.allclose(y.detach(), x.grad)


@custom_op("saving::powers")
def powers(x: Tensor, exponents: list[int]) -> Tensor:
    return x ** sum(exponents)


@powers.register_backward
def _(grad, x, exponents):
    assert isinstance(exponents, list)
    return sum(exponents) * grad * x ** (sum(exponents) - 1)


def test_a_saved_list_is_that_of_the_call():
    """What the caller does to its list afterwards is nothing to the backward."""
    x, exponents = torch.full((2,), 3.0, requires_grad=True), [1, 2]
    for _ in range(3):
        out = powers(x, exponents)
        exponents.append(4)
        gradient = torch.autograd.grad(out.sum(), x)[0]
        exponents.pop()

        assert torch.equal(torch.full((2,), 27.0), gradient)


def test_a_saved_tuple_is_a_list_as_for_kernels():
    x = torch.full((2,), 3.0, requires_grad=True)

    assert torch.equal(torch.full((2,), 27.0), torch.autograd.grad(powers(x, (1, 2)).sum(), x)[0])


def _sorted(name, hidden):
    """An op with a reference, and with a hidden output that its rule reads and no rule names a gradient of."""

    @custom_op(f"saving::{name}", hidden=("i",), outputs=("y", "i"), reference=True)
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        y, i = x.sort()
        return y, hidden(i)

    @op.register_backward
    def _(grad, i):
        return {"x": torch.zeros_like(grad).scatter(-1, i.long(), grad)}

    return op


SORTED = {
    "integers": (_sorted("sorted_integers", lambda i: i), 1),
    "floats": (_sorted("sorted_floats", lambda i: i.double()), 2),
}


@pytest.mark.parametrize("call", [lambda op, x: op(x), lambda op, x: op.overload(x)[0]], ids=["direct", "dispatcher"])
@pytest.mark.parametrize(("op", "count"), SORTED.values(), ids=SORTED)
def test_inputs_are_saved_for_the_gradient_of_a_hidden_output_only_if_it_can_have_one(op, count, call):
    x = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    with saves() as packed:
        y = call(op, x)

    assert count == len([tensor for tensor in packed if tensor is not None])
    assert torch.equal(torch.tensor([3.0, 1.0, 2.0]).double(), torch.autograd.grad((y**2 / 2).sum(), x)[0])


@pytest.mark.parametrize(("op", "count"), SORTED.values(), ids=SORTED)
def test_second_derivatives_with_a_hidden_output_are_right(op, count):
    x = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    expected = torch.diag(6 * x)

    assert torch.allclose(expected, torch.autograd.functional.hessian(lambda x: (op(x) ** 3).sum(), x))
    assert torch.allclose(expected, torch.func.hessian(lambda x: (op(x) ** 3).sum())(x))
