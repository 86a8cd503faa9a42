"""The gallery's kernels and gradients, by value, against PyTorch in float64: every dtype, layout and size."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tables import each
from torch import Tensor

from custom_autograd.core.errors import ShapeError
from custom_autograd.kernels import KernelWarning
from gallery_values import (
    BUDGETS,
    GALLERY,
    assert_derivatives,
    assert_near,
    dtypes,
    dtypes_in_layouts,
    interpreted,
    load,
    needs_compiler,
    random,
    saved_shapes,
    statistic,
    strided,
    transposed,
)

norm, entropy, rotary = load("rms_norm"), load("softmax_cross_entropy"), load("rope")


NORM_SHAPES = [(4, 8), (2, 3, 19), (5,), (3, 1), (0, 8), (4, 0), (300, 257)]
ENTROPY_SHAPES = [(4, 7), (3, 19), (1, 1), (0, 5), (3, 5000)]
ROPE_SHAPES = [(2, 3, 4, 8), (5, 6), (2, 1, 38), (1, 2), (2, 0, 4), (3, 2, 0), (2, 4, 64, 128)]


@needs_compiler
@dtypes_in_layouts
@each("shape", NORM_SHAPES)
def test_rms_norm(shape: tuple[int, ...], layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x, weight = layout(random(*shape, dtype=dtype)), random(shape[-1], dtype=dtype, seed=1)
    with norm.rms_norm.use_kernel("cpp"):
        out, rstd = torch.ops.gallery.rms_norm(x, weight, 1e-5)
    exact, exact_rstd = norm.rms_norm.__wrapped__(x.double(), weight.double(), 1e-5)

    assert (dtype, statistic(dtype)) == (out.dtype, rstd.dtype)
    assert out.is_contiguous()
    assert_near(out, exact, dtype)
    assert_near(rstd, exact_rstd, statistic(dtype))


@needs_compiler
@dtypes_in_layouts
@each("shape", NORM_SHAPES[:-2])
def test_rms_norm_grad(shape: tuple[int, ...], layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    out_grad, x = layout(random(*shape, dtype=dtype)), layout(random(*shape, dtype=dtype, seed=1))
    weight, rstd, rstd_grad = (
        random(*s, dtype=dtype, seed=2) for s in (shape[-1:], (*shape[:-1], 1), (*shape[:-1], 1))
    )
    arguments = (out_grad, x, weight, rstd, rstd_grad)

    with norm.rms_norm_grad.use_kernel("cpp"):
        found = norm.rms_norm_grad(*arguments)
    expected = norm.rms_norm_grad.__wrapped__(*(a.double() for a in arguments))

    for gradient, exact in zip(found, expected, strict=True):
        assert_near(gradient, exact, dtype, budget=2 * BUDGETS[dtype])


@needs_compiler
@dtypes_in_layouts
@each("reduction", ["mean", "sum", "none"])
@each("shape", ENTROPY_SHAPES)
def test_softmax_cross_entropy(
    shape: tuple[int, int], reduction: str, layout: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """As F.cross_entropy, with rows ignored, and impossible classes of logit minus infinity."""
    rows, classes = shape
    logits = 3 * random(rows, classes, dtype=dtype)
    logits[:, classes // 2 + 1 :: 2] = -torch.inf
    logits = layout(logits)
    labels = torch.arange(rows) % (classes // 2 + 1)
    labels[rows // 2 :: 2] = -100
    with entropy.softmax_cross_entropy.use_kernel("cpp"):
        loss, lse = torch.ops.gallery.softmax_cross_entropy(logits, labels, -100, reduction)

    assert (statistic(dtype), statistic(dtype)) == (loss.dtype, lse.dtype)
    assert_near(loss, F.cross_entropy(logits.double(), labels, reduction=reduction), statistic(dtype))
    assert_near(lse, logits.double().logsumexp(-1), statistic(dtype))


@needs_compiler
@dtypes_in_layouts
@each("with_lse", [False, True])
@each("reduction", ["mean", "sum", "none"])
@each("shape", ENTROPY_SHAPES)
def test_cross_entropy_grad(
    shape: tuple[int, int],
    reduction: str,
    with_lse: bool,
    layout: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
) -> None:
    rows, classes = shape
    logits, labels = layout(3 * random(rows, classes, dtype=dtype)), torch.arange(rows) % classes
    labels[rows // 2 :: 2] = -100
    lse = logits.to(statistic(dtype)).logsumexp(-1)
    grad_loss = random(*(lse.shape if reduction == "none" else ()), dtype=dtype, seed=1)
    grad_lse = random(rows, dtype=dtype, seed=2) if with_lse else None

    with entropy.cross_entropy_grad.use_kernel("cpp"):
        found = entropy.cross_entropy_grad(grad_loss, grad_lse, logits, labels, lse, -100, reduction)

    on_lse = grad_lse.double() if with_lse else None
    expected = entropy.cross_entropy_grad.__wrapped__(
        grad_loss.double(), on_lse, logits.double(), labels, lse.double(), -100, reduction
    )
    assert_near(found, expected, dtype)


def test_cross_entropy_of_ignored_rows_only() -> None:
    """The mean over nothing is NaN and its gradient zero, as in PyTorch."""
    logits, labels = random(3, 4, dtype=torch.float64).requires_grad_(), torch.full((3,), -100)
    loss = entropy.softmax_cross_entropy(logits, labels)
    (gradient,) = torch.autograd.grad(loss, logits)
    (expected,) = torch.autograd.grad(F.cross_entropy(logits, labels), logits)

    assert loss.isnan()
    assert torch.equal(expected, gradient)


@needs_compiler
@each("label", [4, -1, 2**40])
def test_label_out_of_range(label: int) -> None:
    """A label that is not a class is said, with its row, and nothing is read there."""
    with pytest.raises(RuntimeError, match=rf"label {label} in row 1 is neither a class in \[0, 4\) nor ignore_index"):
        entropy.softmax_cross_entropy(torch.zeros(2, 4), torch.tensor([0, label]))


@needs_compiler
@dtypes
@each("layout", [Tensor.contiguous, transposed, strided])
@each("shape", ROPE_SHAPES)
def test_rope(shape: tuple[int, ...], layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """Out of place and in place."""
    x = layout(random(*shape, dtype=dtype))
    cos, sin = (random(shape[-2], shape[-1] // 2, dtype=dtype, seed=seed) for seed in (1, 2))
    exact = rotary.rope.__wrapped__(x.double(), cos.double(), sin.double())
    with rotary.rope.use_kernel("cpp"), rotary.rope_.use_kernel("cpp"):
        out = rotary.rope(x, cos, sin)
        rotary.rope_(x, cos, sin)

    assert out.is_contiguous()
    assert_near(out, exact, dtype)
    assert torch.equal(out, x)


@needs_compiler
@each("kernel", ["cpp", "default"])
@dtypes
def test_cross_entropy_of_infinite_logits_and_nan(dtype: torch.dtype, kernel: str) -> None:
    """NaN is above infinity, wherever it stands."""
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[inf, nan, 0.0], [nan, inf, 0.0], [inf, 0.0, 0.0], [-inf, nan, -inf]], dtype=dtype)
    with entropy.softmax_cross_entropy.use_kernel(kernel):
        loss, lse = torch.ops.gallery.softmax_cross_entropy(logits, torch.full((4,), 2), -100, "none")

    assert_near(lse, logits.double().logsumexp(-1), statistic(dtype))
    assert [True, True, False, True] == loss.isnan().tolist()


@each("weight", [torch.ones(1), torch.ones(4) + 1j])
@each("form", [norm.rms_norm, norm.rms_norm.__wrapped__])
def test_rms_norm_refuses_a_weight_that_is_not_one_real_number_per_feature(form, weight: Tensor) -> None:
    with pytest.raises(
        ValueError, match=r"gallery::rms_norm: 'weight' must be (floating-point \(features,\)|\(d\) with d = 4)"
    ):
        form(torch.ones(2, 4), weight)


@each("table", [torch.ones(1, 2), torch.ones(3, 2) + 1j])
@each("op", [rotary.rope, rotary.rope_])
def test_rope_refuses_tables_that_are_not_one_real_number_per_angle(op, table: Tensor) -> None:
    whole = r"'cos' and 'sin' must be floating-point|'sin' must be \(p h\) with p = 3"
    with pytest.raises(ValueError, match=rf"gallery::rope_?: ({whole})"):
        op(torch.ones(3, 4), torch.ones(3, 2), table)


@each("device", ["cpu", "meta"])
@each("features", [2, 3])
def test_rope_without_an_angle_for_each_pair_is_refused(features: int, device: str) -> None:
    """In graphs and on a GPU too, where a kernel would read beyond the tables."""
    ones = partial(torch.ones, device=device)
    with pytest.raises(ShapeError, match=rf"'sin' must be \(p h\) with h = {2 * features}"):
        rotary.rope(ones(3, 4 * features), ones(3, 2 * features), ones(3, features))


@needs_compiler
def test_labels_that_are_not_one_for_each_row_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"'labels' must be \(n\) with n = 2"):
        entropy.softmax_cross_entropy(torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64))


@each("device", ["cpu", "meta"])
def test_labels_that_are_not_integers_are_refused(device: str) -> None:
    labels = torch.zeros(2, device=device)
    with pytest.raises(ValueError, match=r"'labels' must be integers, found torch\.float32"):
        entropy.softmax_cross_entropy(torch.zeros(2, 4, device=device), labels)


@each("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_labels_of_every_integer_dtype(dtype: torch.dtype) -> None:
    """In every kernel, with gradients: 156 is -100 in eight bits, and is not ignored."""
    logits, labels = random(3, 200, dtype=torch.float64).requires_grad_(), torch.tensor([7, 1, 100])
    labels[0] = 156 if dtype == torch.uint8 else -100
    given = labels.to(dtype)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    op, arguments = entropy.softmax_cross_entropy, (logits, given, -100, "sum")

    torch.testing.assert_close(op(*arguments), expected)
    torch.testing.assert_close(op.__wrapped__(*arguments)[0], expected)
    torch.testing.assert_close(torch.compile(op, backend="aot_eager", fullgraph=True)(*arguments), expected)
    (found,) = torch.autograd.grad(op(*arguments), logits)
    torch.testing.assert_close(found, torch.autograd.grad(expected, logits)[0])


@interpreted
@each("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_triton_takes_labels_of_every_integer_dtype(dtype: torch.dtype) -> None:
    logits, labels = random(2, 200, dtype=torch.float32), torch.tensor([101, 1]).to(dtype)
    loss, _ = entropy.softmax_cross_entropy_triton(logits, labels, -100, "sum")

    expected = entropy.softmax_cross_entropy.__wrapped__(logits, labels, -100, "sum")[0]
    torch.testing.assert_close(loss, expected)


@needs_compiler
def test_rope_in_place_refuses_shared_memory() -> None:
    """An expanded tensor has fewer places than elements: it cannot be turned in place."""
    with pytest.raises(RuntimeError, match="'x' is expanded"):
        rotary.rope_(torch.ones(1, 3, 4).expand(2, 3, 4), torch.ones(3, 2), torch.ones(3, 2))


def test_rope_is_the_rotation_of_the_paper() -> None:
    """A pair of features as a complex number turns by its angle."""
    angle = random(5, 3, dtype=torch.float64)
    x = random(2, 5, 6, dtype=torch.float64, seed=1)
    turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(angle), angle)

    found = rotary.rope(x, angle.cos(), angle.sin())

    torch.testing.assert_close(found, torch.cat((turned.real, turned.imag), -1))


def in_place(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """rope_ on a copy."""
    turned = x.clone()
    rotary.rope_(turned, cos, sin)
    return turned


LABELS = torch.tensor([1, -100, 0, 3])
TABLES = tuple(random(3, 4, dtype=torch.float64, seed=seed) for seed in (1, 2))
GRADIENTS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "rms_norm": (norm.rms_norm, lambda x, w: norm.rms_norm.__wrapped__(x, w)[0], ((2, 3, 5), (5,))),
    "rms_norm_one_row": (norm.rms_norm, lambda x, w: norm.rms_norm.__wrapped__(x, w)[0], ((5,), (5,))),
    "rope": (rotary.rope, rotary.rope.__wrapped__, ((2, 3, 8), (3, 4), (3, 4))),
    "rope_": (
        lambda x: in_place(x, *TABLES),
        lambda x: rotary.rope.__wrapped__(x, *TABLES),
        ((2, 3, 8),),
    ),
} | {
    f"softmax_cross_entropy_{reduction}": (
        lambda logits, reduction=reduction: entropy.softmax_cross_entropy(logits, LABELS, reduction=reduction),
        lambda logits, reduction=reduction: F.cross_entropy(logits, LABELS, reduction=reduction),
        ((4, 6),),
    )
    for reduction in ("mean", "sum", "none")
}


@each(("op", "reference", "shapes"), GRADIENTS.values())
def test_derivatives(op, reference, shapes) -> None:
    """The hidden statistic depends on the input: its share is in every block of the Hessian."""
    assert_derivatives(op, reference, *(random(*s, dtype=torch.float64, seed=3 + n) for n, s in enumerate(shapes)))


def test_rope_saves_x_only_for_learned_angles() -> None:
    """With constant tables the backward turns the gradient back, and needs no x."""
    x = random(2, 3, 8, dtype=torch.float64).requires_grad_()

    assert tuple(x.shape) not in saved_shapes(lambda: rotary.rope(x, *TABLES))


@pytest.mark.slow
def test_gallery_without_a_compiler_runs_in_pytorch(tmp_path: Path) -> None:
    """A fresh process that can build nothing warns, and computes the same."""
    environment = os.environ | {
        "CUSTOM_AUTOGRAD_CACHE": str(tmp_path),
        "CXX": "no-such-compiler",
        "PYTHONPATH": str(GALLERY.parents[1]),
    }
    command = [sys.executable, "-c", WITHOUT_COMPILER, str(GALLERY)]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "rms_norm same\nsoftmax_cross_entropy same\nrope same\n" == result.stdout, result.stderr
    for name in ("rms_norm", "softmax_cross_entropy", "rope"):
        assert f"{KernelWarning.__name__}: {name}.cpp: no C++ compiler" in result.stderr


@interpreted
def test_triton_kernels_interpreted() -> None:
    """The CUDA kernels on CPU tensors, against float64; the interpreter truncates bfloat16, hence two roundings."""
    for dtype, budget in BUDGETS.items():
        near = partial(assert_near, dtype=dtype, budget=max(2 * budget, 1e-9))
        for shape in NORM_SHAPES[:-1]:
            x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
            for found, exact in zip(
                norm.rms_norm_triton(x.contiguous(), weight, 1e-5),
                norm.rms_norm.__wrapped__(x.double(), weight.double(), 1e-5),
                strict=True,
            ):
                near(found, exact)
        for rows, classes in ENTROPY_SHAPES:
            logits, labels = transposed(3 * random(rows, classes, dtype=dtype)), torch.arange(rows) % classes
            labels[rows // 2 :: 2] = -100
            logits[:, classes // 2 + 1 :: 2] = -torch.inf
            loss, lse = entropy.softmax_cross_entropy_triton(logits.contiguous(), labels, -100, "none")
            near(loss, F.cross_entropy(logits.double(), labels, reduction="none"))
            near(lse, logits.double().logsumexp(-1))
    loss, _ = entropy.softmax_cross_entropy_triton(torch.zeros(1, 4), torch.tensor([4]), -100, "none")
    assert loss.isnan().all()


WITHOUT_COMPILER = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
inputs = {
    "rms_norm": (torch.randn(3, 5), torch.randn(5)),
    "softmax_cross_entropy": (torch.randn(3, 5), torch.tensor([0, 4, -100])),
    "rope": (torch.randn(3, 4), torch.randn(3, 2), torch.randn(3, 2)),
}
for name, arguments in inputs.items():
    op = getattr(__import__(name), name)
    expected = op.__wrapped__(*arguments)
    torch.testing.assert_close(op(*arguments), expected[0] if isinstance(expected, tuple) else expected)
    print(name, "same")
"""
