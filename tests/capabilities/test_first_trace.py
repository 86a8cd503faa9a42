"""An op that a compiler sees before its first eager call: a trace that starts again meets the same op."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from custom_autograd import KernelError, custom_op


def scale(x: Tensor, by: float) -> Tensor:
    return x * by


def fresh(name):
    return custom_op(f"first_trace::{name}", scale, reference=True, replace=True)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_graph_break_in_the_first_trace():
    op = fresh("broken")

    def f(x):
        y = op(x, 2.0)
        torch._dynamo.graph_break()
        return y + 1

    assert torch.equal(torch.full((2,), 3.0), torch.compile(f, backend="eager")(torch.ones(2)))


@pytest.mark.usefixtures("fresh_compiler")
def test_a_float_that_becomes_symbolic_in_the_first_trace():
    op = fresh("floats")
    compiled = torch.compile(lambda x, by: op(x, by), dynamic=True, backend="aot_eager")

    assert [2.0, 3.0] == [compiled(torch.ones(1), by).item() for by in (2.0, 3.0)]


@pytest.mark.usefixtures("fresh_compiler")
def test_an_eager_call_after_the_first_trace_compiles_nothing_anew():
    op = fresh("eager_after")
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: op(x, 2.0), backend=backend, fullgraph=True)
    found = [f(torch.ones(1)) for f in (compiled, lambda x: op(x, 2.0), compiled, lambda x: op(x, 2.0))]

    assert [2.0] * 4 == [y.item() for y in found]
    assert 1 == len(graphs)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("is_called_before", [False, True])
def test_none_for_a_tensor_is_refused_in_the_words_of_an_eager_call(is_called_before):
    op = fresh(f"given_none_{is_called_before}")
    if is_called_before:
        op(torch.ones(1), 2.0)
    words = "argument 'x' has the wrong type"

    with pytest.raises(KernelError, match=words):
        op(None, 2.0)
    with pytest.raises(RuntimeError, match=words):
        torch.compile(lambda by: op(None, by), backend="eager")(2.0)
    with pytest.raises(KernelError, match=words), FakeTensorMode():
        op.overload(None, 2.0)


def write_(x: Tensor, y: Tensor) -> None:
    x.add_(y)


def test_a_write_to_memory_with_an_argument_on_meta_raises():
    """The dispatcher would run the fake kernel, which writes nothing."""
    op = custom_op("first_trace::write_", write_, mutates_args=("x",), replace=True)

    with pytest.raises(RuntimeError, match="the op meets tensors on 'meta', which have no data"):
        op(torch.zeros(2), torch.ones(2, device="meta"))
