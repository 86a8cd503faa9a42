"""With `clear_saved=True` a rule frees what it has read: nothing else holds what was saved for it."""

import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op, inspect, through_dispatcher
from python_server import run_python

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="a caller in Python 3.10 holds its arguments")

FREED: list[bool] = []
"""By saved tensor that a rule has deleted, whether that freed it; of the last backward."""


class Argument:
    pass


def is_freed_when_deleted(argument):
    reference = weakref.ref(argument)
    del argument
    return reference() is None


@pytest.fixture(autouse=True)
def forgotten(request):
    """Forget the last backward.

    After `torch.compiler.set_stance` Dynamo keeps looking at every call in the process, and then Python's own caller
    holds the arguments: only the test in a process of its own can run.
    """
    FREED.clear()
    if not is_freed_when_deleted(Argument()) and "subprocess" not in request.function.__code__.co_names:
        pytest.skip("Dynamo looks at every call in this process, and a caller then holds its arguments")


def note(reference):
    FREED.append(reference() is None)


@custom_op("clearing::sine")
def sine(x: Tensor) -> Tensor:
    return x.sin()


@sine.register_backward(clear_saved=True)
def _(grad, x):
    reference, slope = weakref.ref(x), x.cos()
    del x
    note(reference)
    return grad * slope


@custom_op("clearing::keeping")
def keeping(x: Tensor) -> Tensor:
    return x.sin()


@keeping.register_backward
def _(grad, x):
    reference, slope = weakref.ref(x), x.cos()
    del x
    note(reference)
    return grad * slope


@custom_op("clearing::product", outputs=("out", "root"), hidden=("root",))
def product(x: Tensor, y: Tensor, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    root = (x * y).sqrt()
    return root * scale, root


@product.register_backward(clear_saved=True)
def _(*, root, scale, y, grad_out, x, needs):
    references = [weakref.ref(root), weakref.ref(x), weakref.ref(y)]
    common = grad_out * scale / 2 / root
    del root
    note(references[0])
    of_x = common * y if needs.x else None
    del y
    note(references[2])
    of_y = common * x if needs.y else None
    del x
    note(references[1])
    return of_x, of_y


@custom_op("clearing::dot")
def dot(xs: list[Tensor]) -> Tensor:
    return xs[0] * xs[1]


@dot.register_backward(clear_saved=True)
def _(grad, xs):
    references = [weakref.ref(x) for x in xs]
    first, second = grad * xs[1], grad * xs[0]
    xs.clear()
    for reference in references:
        note(reference)
    return {"xs": [first, second]}


@custom_op("clearing::multiply_", mutates_args=("t",))
def multiply_(t: Tensor, x: Tensor) -> None:
    t.mul_(x)


@multiply_.register_backward(clear_saved=True)
def _(grad_t, x):
    reference, of_t = weakref.ref(x), grad_t * x
    del x
    note(reference)
    return {"t": of_t, "x": None}


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gradient_of_sine(op=sine, **options):
    x = leaf(0.0, 0.5)
    y = op(x * 1)
    return torch.autograd.grad(y.sum(), x, **options)[0]


COSINE = torch.tensor([0.0, 0.5], dtype=torch.float64).cos()


@pytest.mark.parametrize("calls", [1, 4])
def test_what_a_rule_deletes_is_freed(calls):
    for _ in range(calls):
        found = gradient_of_sine()

    assert [True] * calls == FREED
    assert torch.equal(COSINE, found)


def test_without_the_option_it_is_held_until_the_end():
    gradient_of_sine(keeping)

    assert [False] == FREED


def test_a_call_through_the_dispatcher_frees_it_too():
    with through_dispatcher():
        found = gradient_of_sine()

    assert [True] == FREED
    assert torch.equal(COSINE, found)


@pytest.mark.parametrize("calls", [1, 4])
def test_inputs_and_hidden_outputs_are_freed_one_by_one(calls):
    for _ in range(calls):
        x, y = leaf(1.0, 4.0), leaf(9.0, 4.0)
        product(x * 1, y * 1).sum().backward()

    assert [True] * 3 * calls == FREED
    assert [3.0, 1.0] == x.grad.tolist()
    assert [1 / 3, 1.0] == y.grad.tolist()


def test_a_list_is_freed():
    x = leaf(2.0)
    for _ in range(3):
        (found,) = torch.autograd.grad(dot([x * 1, x * 3]).sum(), x)

    assert [True] * 6 == FREED
    assert [12.0] == found.tolist()


def test_what_a_mutating_op_saved_is_freed():
    t, x = leaf(2.0), leaf(5.0)
    for _ in range(3):
        written = t * 1
        multiply_(written, x.detach() * 1)
        (found,) = torch.autograd.grad(written.sum(), t)

    assert [True] * 3 == FREED
    assert [5.0] == found.tolist()


def test_a_retained_graph_keeps_what_was_saved():
    x = leaf(0.0, 0.5)
    y = sine(x * 1).sum()
    found = [torch.autograd.grad(y, x, retain_graph=is_retained)[0] for is_retained in (True, False)]

    assert [False, True] == FREED
    assert torch.equal(found[0], found[1])
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        torch.autograd.grad(y, x)


def test_second_derivatives_are_right():
    x = leaf(0.0, 0.5)
    (first,) = torch.autograd.grad(sine(x * 1).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)

    assert torch.equal(-x.detach().sin(), second)
    assert torch.autograd.gradgradcheck(sine, x)


def test_looking_at_what_is_saved_does_not_free_it():
    x = leaf(0.0, 0.5)
    y = sine(x * 1)
    inspect(y)
    shown = y.grad_fn._saved_x.tolist()
    y.sum().backward()

    assert x.tolist() == shown
    assert torch.equal(COSINE, x.grad)


def test_a_gradient_of_the_wrong_shape_raises_as_without_the_option():
    @custom_op("clearing::wrong")
    def wrong(x: Tensor) -> Tensor:
        return x.sin()

    @wrong.register_backward(clear_saved=True)
    def _(grad, x):
        return grad.sum()

    for _ in range(3):
        with pytest.raises(RuntimeError, match="the gradient of 'x' has the wrong shape"):
            wrong(leaf(1.0, 2.0)).sum().backward()


def test_transforms_get_the_same_gradient():
    x = leaf(0.0, 0.5).detach()

    assert torch.equal(COSINE, torch.func.grad(lambda x: sine(x).sum())(x))
    assert torch.equal(COSINE, torch.func.jvp(sine, (x,), (torch.ones_like(x),))[1])
    assert torch.equal(COSINE, torch.func.vmap(torch.func.grad(sine))(x))


@custom_op("clearing::plain_sine", reference=True)
def plain_sine(x: Tensor) -> Tensor:
    return x.sin()


@plain_sine.register_backward(clear_saved=True)
def _(grad, x):
    slope = x.cos()
    del x
    return grad * slope


@pytest.mark.parametrize("runs_compiled", [False, True], ids=["graph", "compiled autograd"])
def test_compiled_code_gets_the_same_gradient(runs_compiled, fresh_compiler):
    x = leaf(0.0, 0.5)
    call = torch.compile(lambda x: plain_sine(plain_sine(x)).sum(), backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(compiled_autograd=runs_compiled):
        call(x).backward()

    assert torch.allclose(x.detach().sin().cos() * x.detach().cos(), x.grad)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of a process")
def test_the_peak_of_a_chain_is_lower():
    """By one tensor: the rule holds the slope and the gradient, and without the option what it has read."""
    script = """
import torch
from custom_autograd import custom_op
from custom_autograd.benchmarking.memory import peak_memory

def peak_of(clear_saved):
    op = custom_op(f"chain::sine_{clear_saved}", torch.sin, schema="(Tensor x) -> Tensor")

    @op.register_backward(clear_saved=clear_saved)
    def backward(grad, x):
        slope = x.cos()
        del x
        return grad * slope

    for _ in range(3):                        # what the first rounds load is not counted
        x = torch.ones(2**22, requires_grad=True)
        y = op(op(op(op(x)))).sum()
        found = round(peak_memory(lambda: torch.autograd.grad(y, x)) / x.nbytes)
    return found

print(peak_of(False), peak_of(True))
"""
    ended = run_python("-c", script)

    assert "2 1\n" == ended.stdout, ended.stderr
