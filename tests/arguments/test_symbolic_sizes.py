"""An int is a symbol wherever it can be a size: nine sizes, or nine values, compile two graphs, forward and backward.

The first graph is for the first value alone, the second for all; where sizes are marked dynamic there is only one.
Sizes begin at 2: torch.compile never varies 0 and 1.
"""

import pytest
import torch
from tables import each
from torch import Tensor
from torch.testing import assert_close
from ways import Calls

from custom_autograd import custom_op
from custom_autograd.torch_private.verification import GraphCounter

NINE = range(2, 11)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


@custom_op("symbolic::doubled", reference=True)
def doubled(x: Tensor) -> Tensor:
    return x * 2


@custom_op("symbolic::times", reference=True)
def times(x: Tensor, n: int) -> Tensor:
    return x * n


@custom_op("symbolic::with_default", reference=True)
def with_default(x: Tensor, n: int = 3) -> Tensor:
    return x * n


@custom_op("symbolic::with_keyword", reference=True)
def with_keyword(x: Tensor, *, n: int = 3) -> Tensor:
    return x * n


@custom_op("symbolic::with_optional", reference=True)
def with_optional(x: Tensor, n: int | None = None) -> Tensor:
    return x * (1 if n is None else n)


@custom_op("symbolic::repeated", reference=True)
def repeated(x: Tensor, n: int) -> Tensor:
    return x.sum().expand(n).clone()


def expanding(name, annotation):
    def function(x: Tensor, shape) -> Tensor:
        return x.sum().expand(shape).clone()

    function.__annotations__["shape"] = annotation
    return custom_op(f"symbolic::{name}", function, reference=True)


expanded = expanding("expanded", list[int])
expanded_to_tuple = expanding("expanded_to_tuple", tuple[int, ...])
expanded_to_size = expanding("expanded_to_size", torch.Size)


@custom_op("symbolic::expanded_to_optional", reference=True)
def expanded_to_optional(x: Tensor, shape: list[int] | None = None) -> Tensor:
    return x.sum().expand((2,) if shape is None else shape).clone()


@custom_op("symbolic::first")
def first(x: Tensor, n: int) -> Tensor:
    return x[:n].clone()


first.register_fake(lambda x, n: x.new_empty(n))


@first.register_backward
def _(grad, n, meta):
    return torch.nn.functional.pad(grad, (0, meta.x.shape[0] - n))


@first.register_jvp
def _(tangent_x, n):
    return tangent_x[:n].clone()


@custom_op("symbolic::torch_style")
def torch_style(x: Tensor, n: int) -> Tensor:
    return x * n


torch_style.register_fake(lambda x, n: torch.empty_like(x))


def _setup(ctx, inputs, output):
    ctx.n = inputs[1]


torch_style.register_autograd(lambda ctx, grad: (grad * ctx.n, None), setup_context=_setup)


@custom_op("symbolic::summed", reference=True)
def summed(tensors: list[Tensor], n: int) -> Tensor:
    return torch.stack([x.sum() * n for x in tensors])


@custom_op("symbolic::scaled_", mutates_args="x")
def scaled_(x: Tensor, n: int) -> None:
    x.mul_(n)


@scaled_.register_backward
def _(grad, n):
    return grad * n


@custom_op("symbolic::counted")
def counted(x: Tensor, n: int) -> tuple[Tensor, int]:
    return x * n, x.shape[0] * n


counted.register_fake(lambda x, n: (torch.empty_like(x), x.shape[0] * n))


@counted.register_backward
def _(grad_output_0, n):
    return grad_output_0 * n


@custom_op("symbolic::length")
def length(x: Tensor) -> int:
    return x.shape[0]


length.register_fake(lambda x: x.shape[0])


def scaled_copy(x, n):
    y = x.clone()
    scaled_(y, n)
    return y


def counted_product(x, n):
    y, count = counted(x, n)
    return y * count


OF_VALUES = {
    "int": times,
    "default": with_default,
    "keyword-only": lambda x, n: with_keyword(x, n=n),
    "optional": with_optional,
    "size of an output": repeated,
    "list": lambda x, n: expanded(x, [n, 3]),
    "list of several": lambda x, n: expanded(x, [n, n + 1, 2]),
    "tuple": lambda x, n: expanded_to_tuple(x, (n, 3)),
    "torch.Size": lambda x, n: expanded_to_size(x, torch.Size((n, 3))),
    "optional list": lambda x, n: expanded_to_optional(x, [n]),
    "saved by a rule, with metadata": first,
    "saved by a setup_context": torch_style,
    "beside a list of tensors": lambda x, n: summed([x, x], n),
    "of an op that writes": scaled_copy,
    "of which an output is made": counted_product,
}
OF_SIZES = {
    "reference": doubled,
    "size as an argument": lambda x: times(x, x.shape[0]),
    "shape as a list": lambda x: expanded(x, x.shape),
    "shape as a torch.Size": lambda x: expanded_to_size(x, x.shape),
    "rule with metadata": lambda x: first(x, 2),
    "rule with the size itself": lambda x: first(x, x.shape[0] - 1),
    "setup_context": lambda x: torch_style(x, 3),
    "list of tensors": lambda x: summed([x, 2 * x], 3),
    "writes": lambda x: scaled_copy(x, 3),
    "int among the outputs": lambda x: counted_product(x, 3),
}
VALUES = each("call", OF_VALUES.values(), ids=OF_VALUES)
SIZES = each("call", OF_SIZES.values(), ids=OF_SIZES)


def vector(size):
    return torch.linspace(1, 2, size, dtype=torch.float64).requires_grad_()


def value_and_gradient(call, x, *rest):
    output = call(x, *rest)
    return output, torch.autograd.grad((output * output).sum(), x)[0]


def graphs_of(call, samples, **options):
    """How many graphs the calls compile; each is compared with eager, forward and backward."""
    counter = GraphCounter()
    compiled = torch.compile(call, backend=counter, fullgraph=True, **options)
    for sample in samples:
        assert_close(value_and_gradient(compiled, *sample), value_and_gradient(call, *sample))
    return counter.graphs


@VALUES
def test_nine_values_compile_two_graphs(call):
    assert 2 == graphs_of(call, [(vector(12), n) for n in NINE])


@VALUES
def test_nine_values_compile_one_graph_where_all_is_dynamic(call):
    assert 1 == graphs_of(call, [(vector(12), n) for n in NINE], dynamic=True)


@SIZES
def test_nine_sizes_compile_two_graphs(call):
    assert 2 == graphs_of(call, [(vector(size),) for size in NINE[1:]])


@SIZES
def test_nine_sizes_compile_one_graph_where_they_are_marked(call):
    samples = [(vector(size),) for size in range(3, 12)]
    for (x,) in samples:
        torch._dynamo.mark_dynamic(x, 0)

    assert 1 == graphs_of(call, samples)


@each("call", [times, OF_VALUES["list"], first], ids=["int", "list", "saved by a rule"])
def test_sizes_and_values_that_change_together_compile_two_graphs(call):
    assert 2 == graphs_of(call, [(vector(12 + n), n) for n in NINE])


@pytest.mark.parametrize("shape", [list, tuple, torch.Size], ids=lambda kind: kind.__name__)
def test_nine_values_within_a_given_shape_compile_two_graphs(shape):
    op = {list: expanded, tuple: expanded_to_tuple, torch.Size: expanded_to_size}[shape]

    assert 2 == graphs_of(op, [(vector(12), shape([n, 3])) for n in NINE])


def gradient_of_times(x, n):
    return torch.func.grad(lambda y: times(y, n).square().sum())(x)


def batch_of_times(x, n):
    return torch.vmap(lambda row: times(row, n))(x.reshape(3, 4))


def tangent_of_first(x, n):
    return torch.func.jvp(lambda y: first(y, n) ** 2, (x,), (torch.ones_like(x),))[1]


@pytest.mark.parametrize("call", [gradient_of_times, batch_of_times, tangent_of_first])
def test_values_under_a_transform_compile_two_graphs(call):
    assert 2 == graphs_of(call, [(vector(12), n) for n in NINE])


def test_a_lone_int_is_a_symbol_where_sizes_are_dynamic():
    def call(x):
        return doubled(x) * length(x)

    assert 1 == graphs_of(call, [(vector(size),) for size in NINE], dynamic=True)


@custom_op("symbolic::compiled_first", reference=True)
def compiled_first(x: Tensor) -> Tensor:
    return x * 3


def test_the_first_eager_call_between_two_compiled_ones_compiles_nothing_anew():
    counter = GraphCounter()
    compiled = torch.compile(lambda x: compiled_first(x) + 1, backend=counter, fullgraph=True, dynamic=True)
    compiled(vector(3))
    compiled_first(vector(3))
    found = compiled(vector(4))

    assert 1 == counter.graphs
    assert_close(found, 3 * vector(4) + 1)


@SIZES
@pytest.mark.parametrize("is_strict", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["non-strict", "strict"])
def test_one_exported_program_serves_all_sizes(call, is_strict):
    shapes = (({0: torch.export.Dim("n", min=3, max=64)},),)
    program = torch.export.export(Calls(call), (vector(5),), dynamic_shapes=shapes, strict=is_strict)

    assert_close([program.module()(vector(n)) for n in range(3, 12)], [call(vector(n)) for n in range(3, 12)])


@VALUES
def test_gradcheck_passes(call):
    assert torch.autograd.gradcheck(lambda x: call(x, 3), vector(5))
