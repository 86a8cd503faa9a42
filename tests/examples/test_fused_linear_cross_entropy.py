"""fused_linear_cross_entropy, by value, against F.cross_entropy of F.linear in float64."""

import pytest
import torch
import torch.nn.functional as F
from tables import each
from torch import Tensor

from gallery_values import (
    assert_derivatives,
    assert_near,
    dtypes,
    load,
    needs_compiler,
    random,
    saved_shapes,
    statistic,
    strided,
    transposed,
)

fused = load("fused_linear_cross_entropy")
# More rows than a chunk, more classes than a block; an odd size; one of everything; no rows.
SIZES = [(300, 3, 9000), (5, 7, 19), (1, 1, 1), (0, 3, 4)]
# Of the largest: roundings of a logit of size 10 go through the exponential, those of each product are added.
BUDGETS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2**-6, torch.float16: 2**-10}


def arguments(rows: int, features: int, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight = random(rows, features, dtype=dtype), random(classes, features, dtype=dtype, seed=1)
    labels = torch.arange(rows) * 31 % classes
    labels[1::3] = -100
    return x, weight, labels, random(classes, dtype=dtype, seed=2)


def exact(x: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(F.linear(x, weight, bias), labels, reduction=reduction)


@needs_compiler
@dtypes
@each("reduction", ["mean", "sum"])
@each("size", SIZES)
@each("with_bias", [True, False])
def test_loss_and_gradients(size: tuple[int, int, int], reduction: str, with_bias: bool, dtype: torch.dtype) -> None:
    """The gradients that wait in hidden outputs are those of the loss."""
    x, weight, labels, bias = arguments(*size, dtype)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)[: 2 + with_bias]]
    wide = [tensor.detach().double().requires_grad_() for tensor in leaves]
    loss = fused.linear_cross_entropy(*leaves[:2], labels, *leaves[2:], reduction=reduction)
    expected = exact(*wide[:2], labels, *wide[2:], reduction=reduction)
    gradients, exact_gradients = torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, wide)

    assert statistic(dtype) == loss.dtype
    assert [tensor.dtype for tensor in leaves] == [gradient.dtype for gradient in gradients]
    torch.testing.assert_close(loss.double(), expected, rtol=BUDGETS[dtype], atol=1e-6, equal_nan=True)
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        scale = exact_gradient.abs().max().item() if exact_gradient.numel() else 0
        assert_near(gradient, exact_gradient, dtype, BUDGETS[dtype] * max(scale, 2.0**-24))


@needs_compiler
@each("layout", [transposed, strided])
def test_layouts(layout) -> None:
    """Also labels with a stride."""
    x, weight, labels, bias = arguments(5, 7, 19, torch.float64)
    found = fused.fused_linear_cross_entropy(layout(x), layout(weight), strided(labels), strided(bias))

    assert_near(found, exact(x, weight, labels, bias), torch.float64)


@each(("x_wanted", "weight_wanted"), [(True, False), (False, True), (False, False)])
def test_only_wanted_gradients_are_computed(x_wanted: bool, weight_wanted: bool) -> None:
    """The others have no elements."""
    x, weight, labels, bias = arguments(5, 7, 19, torch.float64)
    outputs = fused.fused_linear_cross_entropy.overload(x, weight, labels, bias, -100, "mean", x_wanted, weight_wanted)

    expected = [x.numel() * x_wanted, weight.numel() * weight_wanted, bias.numel() * weight_wanted]
    assert expected == [output.numel() for output in outputs[1:]]


def test_the_call_asks_for_what_requires_a_gradient() -> None:
    """A frozen weight costs no product."""
    x, weight, labels, bias = arguments(5, 7, 19, torch.float64)
    kept = saved_shapes(lambda: fused.linear_cross_entropy(x.requires_grad_(), weight, labels, bias))

    assert (0,) in kept
    assert kept.count((19, 7)) <= 1  # the weight itself


def test_gradients_that_were_not_computed_are_computed_in_backward() -> None:
    """The flags say when, and nothing else."""
    x, weight, labels, bias = arguments(5, 7, 19, torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    flags = {"with_x_grad": False, "with_weight_grad": False}
    found = torch.autograd.grad(fused.fused_linear_cross_entropy(x, weight, labels, bias, **flags), leaves)

    torch.testing.assert_close(found, torch.autograd.grad(exact(x, weight, labels, bias), leaves))


@each("with_gradients", [True, False])
def test_derivatives(with_gradients: bool) -> None:
    """The hidden gradients depend on the inputs: their share comes from the reference."""
    x, weight, labels, bias = arguments(4, 2, 3, torch.float64)
    flags = {"with_x_grad": with_gradients, "with_weight_grad": with_gradients}

    def op(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return fused.fused_linear_cross_entropy(x, weight, labels, bias, **flags)

    assert_derivatives(op, lambda x, weight, bias: exact(x, weight, labels, bias), x, weight, bias)


def test_compiled() -> None:
    """The flags are constants of the graph."""
    x, weight, labels, bias = arguments(5, 7, 19, torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (x, weight)]
    torch.compiler.reset()
    compiled = torch.compile(fused.linear_cross_entropy, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, weight, labels, bias), leaves)

    torch.testing.assert_close(found, torch.autograd.grad(exact(x, weight, labels, bias), leaves))


@each("reduction", ["mean", "sum"])
def test_ignored_rows_only(reduction: str) -> None:
    """The mean over nothing is NaN and its gradient zero, as in PyTorch."""
    x, weight, labels, _ = arguments(3, 2, 4, torch.float64)
    labels.fill_(-100)
    loss = fused.linear_cross_entropy(x.requires_grad_(), weight, labels, reduction=reduction)
    (gradient,) = torch.autograd.grad(loss, x)

    torch.testing.assert_close(loss, exact(x, weight, labels, reduction=reduction), equal_nan=True)
    assert torch.equal(torch.zeros_like(x), gradient)


def test_a_scaled_loss_in_float16_keeps_small_gradients() -> None:
    """1e-8 is zero in float16, and 65536 times that is not: gradients wait in float32."""
    weight = torch.tensor([[0.0], [18.0]], dtype=torch.float16)
    x = torch.tensor([[-1.0]], dtype=torch.float16, requires_grad=True)
    loss = fused.linear_cross_entropy(x, weight, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss * 65536, x)

    assert_near(gradient, torch.tensor([[65536 * 18 * torch.sigmoid(torch.tensor(-18.0).double())]]), torch.float16)


def test_autocast_casts_what_linear_does() -> None:
    x, weight, labels, bias = arguments(5, 7, 19, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = fused.linear_cross_entropy(x, weight, labels, bias)

    lower = (tensor.bfloat16() for tensor in (x, weight))
    assert_near(found, exact(*(t.double() for t in lower), labels, bias.bfloat16().double()), torch.float32, 2**-8)


@needs_compiler
@each("label", [4, -1, 2**40])
def test_label_out_of_range(label: int) -> None:
    with pytest.raises(RuntimeError, match=rf"label {label} is neither a class in \[0, 4\) nor ignore_index \(-100\)"):
        fused.fused_linear_cross_entropy(torch.zeros(2, 3), torch.zeros(4, 3), torch.tensor([0, label]))


@each("shapes", [((2, 3), (4, 2), (2,)), ((2, 3), (4, 3), (3,)), ((3,), (4, 3), (1,)), ((2, 3), (4, 3), (2,), (3,))])
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...]) -> None:
    x, weight, labels, *bias = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=r"'(x|weight|labels|bias)' must be \("):
        fused.fused_linear_cross_entropy(x, weight, labels.long(), *bias)


def test_the_chunked_form_in_pytorch_operations() -> None:
    """What a GPU runs, and what runs without a compiler."""
    x, weight, labels, bias = arguments(300, 7, 19, torch.float64)
    loss, x_grad, *_ = fused.chunked(fused.rows_in_place, x, weight, labels, bias, -100, "mean", True, True)
    expected = exact(x.requires_grad_(), weight, labels, bias)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(x_grad, *torch.autograd.grad(expected, x))


@each(
    "dtypes_of",
    [
        (torch.float32, torch.float64, torch.int64, torch.float32),
        (torch.float32, torch.float32, torch.int64, torch.bfloat16),
        (torch.float32, torch.float32, torch.int32, torch.float32),
        (torch.float32, torch.float32, torch.float32, torch.float32),
    ],
)
@each("form", [fused.fused_linear_cross_entropy, fused.fused_linear_cross_entropy.__wrapped__])
def test_dtypes_that_do_not_fit(form, dtypes_of: tuple[torch.dtype, ...]) -> None:
    shapes = ((2, 3), (4, 3), (2,), (4,))
    arguments = (torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes_of, strict=True))
    with pytest.raises(ValueError, match="'labels' must be int64, and the other tensors of one real dtype; found"):
        form(*arguments)
