"""Export, tracing, threads, the profiler, autocast and subclasses."""

import io
import threading

import pytest
import torch
from tables import each
from torch import Tensor
from torch.testing import assert_close
from ways import Calls

from custom_autograd import custom_op
from ops import TABLE, cube, drop_in, multiply, normalize

EXPORTABLE = {name: row for name, row in TABLE.items() if not row.mutates}


SAVED = {name: row for name, row in TABLE.items() if row.is_saved}


@pytest.mark.usefixtures("fresh_compiler")
@each("row", SAVED.values(), ids=SAVED)
def test_export_round_trip(row):
    program = torch.export.export(Calls(row.op), row.inputs())
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)

    assert any(node.target is row.custom_op.overload for node in program.graph.nodes)
    assert_close(loaded.module()(*row.inputs()), row.reference(*row.inputs()))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # the subject is the deprecated tracer
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_a_traced_graph_holds_the_op():
    traced = torch.jit.trace(lambda x: cube(x) * 2, (torch.ones(3, dtype=torch.float64),))

    assert "table::cube" in str(traced.graph)


def test_threads():
    row = TABLE["hidden"]
    expected = torch.autograd.grad(row.loss(row.reference)(*(x := row.inputs(requires_grad=True))), x)
    found: list[object] = [None] * 8

    def work(index):
        for _ in range(20):
            inputs = row.inputs(requires_grad=True)
            found[index] = torch.autograd.grad(row.loss(row.op)(*inputs), inputs)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for gradients in found:
        assert_close(gradients, expected)


def test_registrations_from_threads():
    ops = {}

    def declare(index):
        @custom_op(f"threads::op_{index}")
        def op(x: Tensor) -> Tensor:
            return x * index

        op.register_backward(lambda grad: grad * index)
        ops[index] = op

    threads = [threading.Thread(target=declare, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    x = torch.ones(2, requires_grad=True)

    assert [float(torch.autograd.grad(ops[i](x).sum(), x)[0][0]) for i in range(8)] == list(range(8))


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # torch 2.11 says so of every profile
def test_nodes_and_profiler_ranges_carry_the_name_of_the_op():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y = cube(x)
        y.sum().backward()
    names = {event.name for event in profile.events()}

    assert "table::cubeBackward" == y.grad_fn.name()
    assert {"table::cube", "table::cubeBackward"} <= names


@custom_op("systems::product")
def product(x: Tensor, *, y: Tensor, scale: float = 1.0) -> Tensor:
    return x * y * scale


@product.register_backward
def _(grad, x, y, scale):
    return {"x": grad * y * scale, "y": grad * x * scale}


product.register_autocast("cpu", torch.bfloat16)


def test_autocast_casts_keyword_arguments_too():
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = product(x, y=y, scale=3.0)
    result.sum().backward()

    assert torch.bfloat16 == result.dtype
    assert_close((x.grad, y.grad), (torch.full((3,), 6.0), torch.full((3,), 3.0)))


class Wrapped(Tensor):
    """A tensor around a tensor, which unwraps every op."""

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=requires_grad)

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(value):
            return value.inner if isinstance(value, Wrapped) else value

        result = func(*map(unwrap, args), **{name: unwrap(value) for name, value in (kwargs or {}).items()})
        return torch.utils._pytree.tree_map_only(Tensor, Wrapped, result)


@pytest.mark.parametrize(
    "op", [multiply, normalize, lambda x, y: drop_in(x, y)[0]], ids=["by name", "hidden", "drop-in"]
)
def test_wrapper_subclasses(op):
    x, y = torch.rand(2, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    plain_x, plain_y = x.clone().requires_grad_(), y.expand(2, 3).clone().requires_grad_() if op is not normalize else y
    wrapped_x = Wrapped(x.clone(), requires_grad=True)
    result = op(wrapped_x, Wrapped(plain_y.detach().clone()))
    result.sum().backward()
    op(plain_x, plain_y).sum().backward()

    assert Wrapped is type(result) is type(wrapped_x.grad)
    assert_close(wrapped_x.grad.inner, plain_x.grad)
