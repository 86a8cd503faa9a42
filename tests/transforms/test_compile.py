"""torch.compile(fullgraph=True) over the whole table, by value: forward, backward, and torch.func inside."""

from functools import partial

import pytest
import torch
from tables import each
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.testing import assert_close

from ops import TABLE, cube, normalize
from slow_cases import slow_but_every

ROWS = each("row", TABLE.values(), ids=TABLE)
TWICE = {name: row for name, row in TABLE.items() if row.has_second_order}
TWICE_ROWS = each("row", TWICE.values(), ids=TWICE)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compiled(f, *, backend="aot_eager", dynamic=False):
    return torch.compile(f, backend=backend, fullgraph=True, dynamic=dynamic)


def gradients(f, inputs):
    return torch.autograd.grad(f(*inputs), inputs)


def as_it_is(f):
    return f


WAYS = {
    "forward": lambda f, row, wrap: wrap(f)(*row.inputs()),
    "backward": lambda f, row, wrap: gradients(wrap(row.loss(f)), row.inputs(requires_grad=True)),
    "func.grad inside": lambda f, row, wrap: wrap(grad(row.loss(f), tuple(range(len(row.shapes)))))(*row.inputs()),
}


@ROWS
@each("way", WAYS)
def test_values_and_gradients(row, way):
    assert_close(WAYS[way](row.op, row, compiled), WAYS[way](row.reference, row, as_it_is))


@ROWS
def test_backward_for_every_size(row):
    actual = WAYS["backward"](row.op, row, partial(compiled, dynamic=True))

    assert_close(actual, WAYS["backward"](row.reference, row, as_it_is))


@pytest.mark.parametrize("name", slow_but_every(4, ["by name", "hidden", "list, keyword-only, optional", "in-place"]))
def test_backward_with_inductor(name):
    row = TABLE[name]
    actual = gradients(compiled(row.loss(row.op), backend="inductor"), row.inputs(requires_grad=True))

    assert_close(actual, gradients(row.loss(row.reference), row.inputs(requires_grad=True)))


@pytest.mark.parametrize("row", [row for row in TWICE.values() if not row.mutates],
                         ids=[name for name, row in TWICE.items() if not row.mutates])  # fmt: skip
@pytest.mark.parametrize("order", [hessian, lambda f: jacfwd(jacfwd(f))], ids=["hessian", "jacfwd of jacfwd"])
@pytest.mark.slow  # the nestings look at second derivatives inside and outside a compiler, op by op
def test_second_derivatives_inside(row, order):
    def second(f):
        return lambda x, *rest: order(lambda y: row.loss(f)(y, *rest))(x)

    assert_close(compiled(second(row.op))(*row.inputs()), second(row.reference)(*row.inputs()))


@TWICE_ROWS
def test_jvp_inside(row):
    def push(f):
        return lambda *inputs: jvp(f, inputs, inputs)

    assert_close(compiled(push(row.op))(*row.inputs()), push(row.reference)(*row.inputs()))


def test_vmap_of_grad_inside():
    row = TABLE["hidden"]
    batch = torch.stack([row.inputs()[0], row.inputs()[0] + 1])
    weight = row.inputs()[1]

    actual = compiled(vmap(grad(row.loss(row.op)), (0, None)))(batch, weight)
    assert_close(actual, vmap(grad(row.loss(row.reference)), (0, None))(batch, weight))


def test_an_op_is_one_opaque_node():
    graphs = []

    def backend(module, inputs):
        graphs.append(module.graph)
        return module

    torch.compile(lambda x, w: normalize(cube(x), w).sum(), backend=backend, fullgraph=True)(
        torch.ones(2, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    )
    targets = [node.target for node in graphs[0].nodes if node.op == "call_function"]

    assert [cube.overload, normalize.overload] == [t for t in targets if t in (cube.overload, normalize.overload)]


def test_one_compilation_serves_all_sizes():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    f = torch.compile(lambda x: (cube(x) ** 2).sum(), backend=counter, fullgraph=True, dynamic=True)

    for size in (3, 5, 7, 9):
        x = torch.rand(size, dtype=torch.float64, requires_grad=True)
        assert_close(torch.autograd.grad(f(x), x)[0], 6 * x.detach() ** 5)
    assert 1 == counter.frame_count
