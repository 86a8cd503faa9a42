"""A default of None makes an annotation optional, as for `torch.library.custom_op`."""

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@custom_op("none_by_default::shifted", reference=True)
def shifted(
    x: Tensor,
    by: Tensor = None,
    n: int = None,  # noqa: RUF013
    factors: dict[str, Tensor] = None,  # noqa: RUF013
) -> Tensor:
    x = x.clone() if by is None else x + by
    x = x if n is None else x * n
    return x if factors is None else x * factors["a"]


X, BY, A = (torch.tensor(values, requires_grad=True) for values in ([1.0, 2.0], [3.0, 5.0], [7.0, 0.5]))
CALLS = [
    ((), {}, [1.0, 2.0]),
    ((None,), {}, [1.0, 2.0]),
    ((BY,), {}, [4.0, 7.0]),
    ((), {"n": 3}, [3.0, 6.0]),
    ((BY, 2, {"a": A}), {}, [56.0, 7.0]),
]


@each(("args", "kwargs", "expected"), CALLS)
@each("backend", [None, "aot_eager"])
def test_arguments_may_be_left_out(args, kwargs, expected, backend):
    call = shifted if backend is None else torch.compile(shifted, backend=backend, fullgraph=True)

    assert expected == call(X, *args, **kwargs).tolist()


def test_a_tensor_that_is_given_has_a_gradient():
    found = torch.autograd.grad(shifted(X, BY, 2, {"a": A}).sum(), (X, BY, A))

    assert [[14.0, 1.0], [14.0, 1.0], [8.0, 14.0]] == [one.tolist() for one in found]


@each("custom_op", [custom_op, torch.library.custom_op], ids=["ours", "torch"])
@each("kind", [Tensor, int, float, bool, str])
def test_the_op_of_torch_ops_may_be_called_without_it(custom_op, kind):
    def left_out(x, by=None):
        return x.clone() if by is None else -x

    left_out.__annotations__ = {"x": Tensor, "by": kind, "return": Tensor}
    custom_op(f"none_by_default_{custom_op.__module__.partition('.')[0]}::{kind.__name__}", left_out, mutates_args=())
    op = getattr(getattr(torch.ops, f"none_by_default_{custom_op.__module__.partition('.')[0]}"), kind.__name__)

    assert [1.0, 2.0] == op(X.detach()).tolist()
