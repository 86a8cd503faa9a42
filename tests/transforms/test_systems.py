"""Export, tracing and subclasses."""

import io

import pytest
import torch
from tables import each
from torch import Tensor
from torch.testing import assert_close
from ways import Calls

from ops import TABLE, cube, drop_in, multiply, normalize

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
