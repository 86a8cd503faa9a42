"""torch.compile(fullgraph=True) over the whole table, by value: forward, backward, and torch.func inside."""

import pytest
import torch
from tables import each
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.testing import assert_close
from ways import side_by_side

from ops import TABLE, cube, normalize
from slow_cases import slow_but_every

ROWS = list(TABLE.values())
TWICE = {name: row for name, row in TABLE.items() if row.has_second_order}
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compiled(f, *, backend="aot_eager", dynamic=False):
    return torch.compile(f, backend=backend, fullgraph=True, dynamic=dynamic)


def gradients(f, inputs):
    return torch.autograd.grad(f(*inputs), inputs)


def results(rows, kind):
    """The ops of rows, or their references, as one function of the tensors of all: for one graph."""
    return side_by_side((getattr(row, kind) for row in rows), (len(row.shapes) for row in rows))


def total(rows, kind):
    losses = side_by_side((row.loss(getattr(row, kind)) for row in rows), (len(row.shapes) for row in rows))
    return lambda *tensors: sum(losses(*tensors))


def inputs_of(rows, **options):
    return [tensor for row in rows for tensor in row.inputs(**options)]


def gradient(rows, kind):
    return grad(total(rows, kind), tuple(range(len(inputs_of(rows)))))


def pushed(rows, kind):
    return lambda *inputs: jvp(results(rows, kind), inputs, inputs)


@each(
    ("make", "rows"),
    [(results, ROWS), (gradient, ROWS), (pushed, list(TWICE.values()))],
    ids=["forward", "func.grad inside", "func.jvp inside"],
)
def test_values_and_derivatives(make, rows):
    assert_close(compiled(make(rows, "op"))(*inputs_of(rows)), make(rows, "reference")(*inputs_of(rows)))


@each("dynamic", [False, True], ids=["static", "dynamic"])
def test_backward(dynamic):
    actual = gradients(compiled(total(ROWS, "op"), dynamic=dynamic), inputs_of(ROWS, requires_grad=True))

    assert_close(actual, gradients(total(ROWS, "reference"), inputs_of(ROWS, requires_grad=True)))


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


def test_a_call_outside_of_all_graphs_is_not_compiled_as_a_graph_of_its_own():
    targets = []

    def backend(module, inputs):
        targets.extend(node.target for node in module.graph.nodes if node.op == "call_function")
        return module

    @torch.compiler.disable(recursive=False)
    def outside(x):
        return cube(x)

    compiled = torch.compile(lambda x: outside(x + 1), backend=backend)
    for _ in range(3):  # from the second call on, another function than that of the first call
        assert_close(compiled(torch.ones(3)), torch.full((3,), 8.0))
    assert cube.overload not in targets
