"""Nested tensors: pointwise ops of jagged ones run on their values, other ops need a rule, and the rest is refused."""

# ruff: noqa: E501 - a message is as long as it is

import re

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch import Tensor

from custom_autograd import Sample, custom_op

NestedTensor = type(torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged))

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


@custom_op("nested::mul", tags=torch.Tag.pointwise, reference=True)
def mul(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@mul.register_backward
def _(grad, x, y):
    return {"x": lambda: (grad * y).sum_to_size(x.shape), "y": lambda: (grad * x).sum_to_size(y.shape)}


@custom_op("nested::split", outputs=("double", "square"), tags=torch.Tag.pointwise, reference=True)
def split(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x * x


@split.register_backward
def _(grad_double, grad_square, x):
    return 2 * grad_double + 2 * x * grad_square


@custom_op("nested::total", tags=torch.Tag.pointwise, reference=True)
def total(tensors: list[Tensor], *, factor: float = 1.0, bias: Tensor | None = None) -> Tensor:
    result = sum(tensors) * factor
    return result.clone() if bias is None else result + bias


@custom_op("nested::scales", tags=torch.Tag.pointwise, reference=True)
def scales(x: Tensor) -> list[Tensor]:
    return [x * 2, x * 3]


@custom_op("nested::softmax", reference=True)
def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@custom_op("nested::ruled", reference=True)
def ruled(x: Tensor, s: float = 2.0) -> tuple[Tensor, Tensor]:
    return x * s, x.exp()


KINDS = []


@ruled.register_backward
def _(grad_output_0, grad_output_1, x, output_1, s):
    KINDS.append((type(grad_output_0), type(grad_output_1)))
    return grad_output_0 * s + grad_output_1 * output_1


@ruled.register_torch_dispatch(NestedTensor)
def _(cls, func, types, args, kwargs):
    x, *rest = args
    return tuple(cls(one, x.offsets()) for one in func(x.values(), *rest, **kwargs))


@custom_op("nested::write_", mutates_args="x", tags=torch.Tag.pointwise)
def write_(x: Tensor) -> None:
    x.mul_(2)


@custom_op("nested::liar", tags=torch.Tag.pointwise, reference=True)
def liar(x: Tensor) -> Tensor:
    return x.sum(0)


OFFSETS = torch.tensor([0, 2, 6])


def values(*shape, requires_grad=True):
    return torch.rand(*(shape or (6, 3)), dtype=torch.float64, requires_grad=requires_grad)


def jagged(values, offsets=OFFSETS, **kwargs):
    return torch.nested.nested_tensor_from_jagged(values, offsets, **kwargs)


# ------------------------------------------------------------------------------------------------- over the values


def test_a_pointwise_op_keeps_the_offsets():
    x = jagged(values())
    y = mul(x, x)

    assert NestedTensor is type(y)
    assert y.offsets() is x.offsets()
    assert y.shape == x.shape
    assert torch.equal(x.values() ** 2, y.values())


def test_gradients_flow_to_the_values():
    x, y = values(), values()
    expected = torch.autograd.grad((x * y).sum(), (x, y))
    found = torch.autograd.grad(mul(jagged(x), jagged(y)).values().sum(), (x, y))

    assert all(map(torch.equal, expected, found))


def test_the_gradient_of_a_jagged_leaf_is_jagged():
    x = jagged(values(requires_grad=False)).requires_grad_()
    mul(x, x).values().sum().backward()

    assert NestedTensor is type(x.grad)
    assert torch.equal(2 * x.detach().values(), x.grad.values())


@each("shape", [(6, 3), (), (3,), (1, 3), (1, 1, 3), (2, 1, 3), (2, 1, 1)])
def test_gradcheck_with_a_jagged_and_a_dense_tensor(shape):
    def function(x, y):
        return mul(jagged(x), jagged(y) if shape == (6, 3) else y).values()

    y = torch.rand(shape, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(function, (values(), y))


def test_a_dense_tensor_with_one_row_per_component_meets_its_component():
    x, y = values(), values(2, 1, 3)
    expected = torch.cat([x[:2] * y[0], x[2:] * y[1]])

    assert torch.equal(expected, mul(jagged(x), y).values())
    assert torch.equal(expected, mul(y, jagged(x)).values())


def test_the_second_derivative():
    x = jagged(values(requires_grad=False)).requires_grad_()
    w = values(3, requires_grad=False)
    (first,) = torch.autograd.grad(mul(x, mul(x, w)).values().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(mul(first, first).values().sum(), x)

    torch.testing.assert_close(8 * x.values() * w * w, second.values())


def test_an_unused_output_has_gradient_zero():
    x = values()
    double, square = split(jagged(x))

    assert torch.equal(torch.full_like(x, 2.0), torch.autograd.grad(double.values().sum(), x, retain_graph=True)[0])
    assert torch.equal(2 * x, torch.autograd.grad(square.values().sum(), x)[0])


def test_lists_and_keyword_only_tensors():
    x, y, bias = values(), values(), values(3)
    found = total([jagged(x), jagged(y), bias], factor=2.0, bias=jagged(y))

    torch.testing.assert_close((x + y + bias) * 2 + y, found.values())
    gradients = torch.autograd.grad(found.values().sum(), (x, y, bias))
    expected = torch.autograd.grad(((x + y + bias) * 2 + y).sum(), (x, y, bias))
    torch.testing.assert_close(expected, gradients)


def test_each_tensor_of_a_list_of_outputs_is_jagged():
    x = values()
    found = scales(jagged(x))

    assert [NestedTensor, NestedTensor] == [type(one) for one in found]
    assert torch.equal(3 * x, found[1].values())


def test_holes_between_components_and_another_ragged_dimension():
    lengths = torch.tensor([1, 3])
    holes, turned = jagged(values(), lengths=lengths), jagged(values(3, 6), jagged_dim=2)

    assert mul(holes, holes).lengths() is lengths
    assert torch.equal(holes.values() ** 2, mul(holes, holes).values())
    assert turned.shape == mul(turned, turned).shape
    assert torch.equal(turned.values() ** 2, mul(turned, turned).values())


def test_inference_mode():
    with torch.inference_mode():
        x, offsets = values(requires_grad=False), torch.tensor([0, 2, 6])

        assert torch.equal(x * x, mul(jagged(x, offsets), jagged(x, offsets)).values())


def test_no_grad():
    x = values()
    with torch.no_grad():
        assert not mul(jagged(x), jagged(x)).requires_grad


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the nested")
def test_vmap_over_the_components():
    """From torch 2.15 on torch itself warns that it runs the op once per component."""
    x, w = jagged(values(requires_grad=False)), values(3, requires_grad=False)

    found = torch.vmap(mul, in_dims=(0, None))(x, w)

    assert all(map(torch.equal, mul(x, w).unbind(), found.unbind()))


def test_torch_func_meets_what_it_meets_with_an_op_of_pytorch():
    x, w = values(requires_grad=False), values(3, requires_grad=False)
    expected = message(lambda: torch.func.grad(lambda w: (jagged(x) * w).sum())(w), RuntimeError)

    assert expected == message(lambda: torch.func.grad(lambda w: mul(jagged(x), w).sum())(w), RuntimeError)


def test_torch_func_on_the_values_before_they_are_jagged():
    x, y = values(requires_grad=False), values(requires_grad=False)
    _, tangent = torch.func.jvp(lambda x: mul(x, y), (x,), (y,))

    assert torch.equal(y, torch.func.grad(lambda x: mul(x, y).sum())(x))
    assert torch.equal(y * y, tangent)


def test_compile(fresh_compiler):
    x, w = values(), values(3)
    y = torch.compile(lambda x, w: mul(mul(x, w), x), backend="aot_eager", fullgraph=True)(jagged(x), w)
    expected = torch.autograd.grad((x * x * w).sum(), (x, w))

    torch.testing.assert_close(x * x * w, y.values())
    torch.testing.assert_close(expected, torch.autograd.grad(y.values().sum(), (x, w)))


def test_compile_with_an_unused_output(fresh_compiler):
    x = values()
    y = torch.compile(lambda x: split(x)[1], backend="aot_eager", fullgraph=True)(jagged(x))

    torch.testing.assert_close(2 * x, torch.autograd.grad(y.values().sum(), x)[0])


def test_the_op_checks_out():
    report = mul.check([Sample(values(2, 3), values(2, 3))])

    assert report.ok


# ------------------------------------------------------------------------------------------------- rules for jagged


def test_a_rule_runs_for_jagged_tensors():
    x = values()
    double, exponential = ruled(jagged(x))

    assert torch.equal(x * 2, double.values())
    assert torch.equal(x.exp(), exponential.values())


def test_with_a_rule_undefined_gradients_are_jagged_zeros():
    x = jagged(values(requires_grad=False)).requires_grad_()
    double, _ = ruled(x)
    KINDS.clear()
    double.values().sum().backward()

    assert [(NestedTensor, NestedTensor)] == KINDS
    assert torch.equal(torch.full_like(x.values(), 2.0), x.grad.values())


def test_with_a_rule_undefined_gradients_under_compile(fresh_compiler):
    x = values()
    y = torch.compile(lambda x: ruled(x)[0], backend="aot_eager", fullgraph=True)(jagged(x))

    assert torch.equal(torch.full_like(x, 2.0), torch.autograd.grad(y.values().sum(), x)[0])


def test_coverage_says_what_happens_to_jagged_tensors():
    assert "registered: jagged tensors (pointwise: over their values)" == mul.capabilities()["torch_dispatch"]
    assert "none: each class's own __torch_dispatch__" == softmax.capabilities()["torch_dispatch"]


# ------------------------------------------------------------------------------------------------- what is refused


def shape_free(text):
    """The text with the ragged sizes, which torch numbers through a process, numbered through the text."""
    names = dict.fromkeys(re.findall(r"\bj\d+", text))
    return re.sub(r"\bj\d+", lambda match: f"j{[*names].index(match[0])}", text)


def test_ops_that_cannot_run_over_the_values():
    assert_expected_inline(
        together(
            message(lambda: softmax(jagged(values()))),
            message(lambda: write_(jagged(values()))),
            message(lambda: liar(jagged(values()))),
        ),
        """\
KernelError
  declared   FILE.py:LINE
nested::softmax: 'x' is a nested tensor, and the op has no rule for those
  expected   a dense tensor, a pointwise op, or a rule
  found      layout torch.jagged
  do         declare it with tags=torch.Tag.pointwise if each element of an output depends on the elements in its own place only; else register_torch_dispatch(type(x), rule)
nested::write_: the op writes to 'x', which it cannot for nested tensors
  do         call it on x.values(), or register_torch_dispatch(type(x), rule)
nested::liar: the op is declared pointwise, and its output has another shape than the values
  expected   (6,), and any sizes behind
  found      (3,)
  do         declare it without torch.Tag.pointwise""",
    )


def test_tensors_that_are_not_ragged_alike():
    x = jagged(values())
    assert_expected_inline(
        together(
            shape_free(message(lambda: mul(x, jagged(values(), torch.tensor([0, 3, 6]))))),
            shape_free(message(lambda: mul(x, jagged(values(6), x.offsets())))),
            shape_free(message(lambda: mul(x, values()))),
        ),
        """\
KernelError: nested::mul
  declared   FILE.py:LINE
the nested tensors 'x' and 'y' are not ragged alike
  expected   the same offsets, and as many dimensions, in both; 'x' has shape (2, j0, 3)
  found      'y' of shape (2, j1, 3)
  do         make one from the other's offsets: torch.nested.nested_tensor_from_jagged(values, offsets=x.offsets())
the nested tensors 'x' and 'y' are not ragged alike
  expected   the same offsets, and as many dimensions, in both; 'x' has shape (2, j0, 3)
  found      'y' of shape (2, j0)
  do         make one from the other's offsets: torch.nested.nested_tensor_from_jagged(values, offsets=x.offsets())
the dense tensor 'y' does not broadcast against the nested tensor 'x'
  expected   no more than the dimensions behind the ragged one of (2, j0, 3), or size 1 there
  found      (6, 3)
  do         make it a nested tensor with the same offsets""",
    )


def test_lengths_that_agree_with_offsets_that_differ():
    lengths = torch.tensor([1, 1])
    x, y = jagged(values(), lengths=lengths), jagged(values(), torch.tensor([0, 3, 6]), lengths=lengths)

    assert "not ragged alike" in message(lambda: mul(x, y))


def test_a_nested_tensor_of_strided_layout():
    x = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])

    assert_expected_inline(
        message(lambda: mul(x, x)),
        """\
KernelError: nested::mul: 'x' is a nested tensor of strided layout
  expected   dense tensors, or nested tensors of layout torch.jagged
  found      layout torch.strided
  declared   FILE.py:LINE
  do         make it with torch.nested.nested_tensor(..., layout=torch.jagged)""",
    )
    with torch.inference_mode():
        assert "is a nested tensor of strided layout" in message(lambda: mul(x, x))


def test_a_rule_registered_twice():
    def again():
        ruled.register_torch_dispatch(NestedTensor, lambda cls, func, types, args, kwargs: None)

    assert_expected_inline(
        message(again),
        """\
RegistrationError: nested::ruled: the torch_dispatch torch.nested._internal.nested_tensor.NestedTensor rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )
