"""The Triton kernels of gradients, interpreted, against the references in float64."""

import torch
from tables import each
from torch import Tensor

from gallery_values import BUDGETS, assert_near, dtypes, interpreted, load, random, statistic

norm, added, entropy = load("rms_norm"), load("fused_add_rms_norm"), load("softmax_cross_entropy")
choices = load("launch_choices")
SHAPES = ((4, 8), (2, 3, 19), (5,), (3, 1), (37, 130))


def wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.double() for tensor in tensors]


def assert_all_near(found: tuple[Tensor, ...], exact: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """The interpreter truncates bfloat16, hence two roundings, of the largest value: rows are summed."""
    for one, other in zip(found, exact, strict=True):
        scale = max(1.0, float(other.abs().max()))
        assert dtype == one.dtype
        assert_near(one.double() / scale, other / scale, dtype, max(2 * BUDGETS[dtype], 1e-9))


def inputs_of_norm(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors like x, then weight, rstd and its gradient."""
    rows, sums = [random(*shape, dtype=dtype, seed=seed) for seed in range(3)], statistic(dtype)
    weight, rstd = random(shape[-1], dtype=dtype, seed=4), random(*shape[:-1], 1, dtype=sums, seed=5).abs() + 0.5
    return rows, [weight, rstd, random(*shape[:-1], 1, dtype=sums, seed=6)]


@interpreted
@dtypes
@each("shape", SHAPES)
def test_gradients_of_the_norms(shape, dtype):
    rows, others = inputs_of_norm(shape, dtype)
    exact = norm.rms_norm_grad.__wrapped__(*wide(*rows[:2], *others))
    assert_all_near(norm.rms_norm_grad_triton(*rows[:2], *others), exact, dtype)

    exact = added.fused_add_rms_norm_grad.__wrapped__(*wide(*rows, *others))
    assert_all_near(added.launch_grads(*rows, *others), exact, dtype)


@interpreted
def test_statistics_of_fewer_digits_are_widened():
    """As in the samples of these ops: the arithmetic is that of float32 all the same."""
    rows, others = inputs_of_norm((5, 130), torch.bfloat16)
    others = [tensor.bfloat16() for tensor in others]
    exact = norm.rms_norm_grad.__wrapped__(*wide(*rows[:2], *others))
    assert_all_near(norm.rms_norm_grad_triton(*rows[:2], *others), exact, torch.bfloat16)

    logits, labels, grad_loss = random(3, 19, dtype=torch.bfloat16), torch.tensor([18, -100, 0]), torch.tensor(1.5)
    arguments = grad_loss.bfloat16(), None, logits, labels, logits.logsumexp(-1)
    exact = entropy.cross_entropy_grad.__wrapped__(*wide(*arguments[:3]), labels, arguments[4].double(), -100, "mean")
    assert_all_near((entropy.cross_entropy_grad_triton(*arguments, -100, "mean"),), (exact,), torch.bfloat16)


@interpreted
def test_rows_are_shared_by_a_few_programs(monkeypatch):
    """Each of them sums several rows; one of them has fewer."""
    launch = choices.Launch((3, 16), 0, 2)
    monkeypatch.setitem(choices.FORCED, "rms_norm gradients, 32 x 4 bytes", launch)
    rows, others = inputs_of_norm((11, 19), torch.float32)
    exact = norm.rms_norm_grad.__wrapped__(*wide(*rows[:2], *others))

    assert_all_near(norm.rms_norm_grad_triton(*rows[:2], *others), exact, torch.float32)


@interpreted
def test_sums_of_more_programs_and_features_than_a_block_has(monkeypatch):
    """The gradient of the weight, in the dtype of the weight."""
    monkeypatch.setitem(choices.FORCED, "rms_norm gradients, 64 x 4 bytes", choices.Launch((70, 16), 0, 2))
    rows, (weight, *statistics) = inputs_of_norm((150, 37), torch.float32)
    exact = norm.rms_norm_grad.__wrapped__(*wide(*rows[:2], weight, *statistics))
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 1e-2)):
        _, found = norm.rms_norm_grad_triton(*rows[:2], weight.to(dtype), *statistics)
        assert dtype == found.dtype
        torch.testing.assert_close(found.double(), exact[1], rtol=tolerance, atol=1e-4)


@interpreted
@dtypes
@each("reduction", ["mean", "sum", "none"])
@each("has_grad_lse", [True, False])
def test_gradient_of_the_cross_entropy(reduction, has_grad_lse, dtype):
    rows, classes, sums = 5, 4099, statistic(dtype)  # more classes than a block has
    logits, labels = random(rows, classes, dtype=dtype), torch.tensor([0, 4098, -100, 4096, 7])
    grad_loss = random(*((rows,) if reduction == "none" else ()), dtype=sums, seed=1)
    grad_lse = random(rows, dtype=sums, seed=2) if has_grad_lse else None
    lse = logits.to(sums).logsumexp(-1)
    arguments = grad_loss, grad_lse, logits, labels, lse
    exact = entropy.cross_entropy_grad.__wrapped__(*wide(*arguments[:3]), labels, lse.double(), -100, reduction)

    assert_all_near((entropy.cross_entropy_grad_triton(*arguments, -100, reduction),), (exact,), dtype)


@interpreted
def test_the_cross_entropy_of_infinite_logits():
    """In several blocks: a maximum of infinity, and blocks of minus infinities before the maximum."""
    logits = torch.full((3, 9000), -torch.inf)
    logits[0, [3, 8000]] = torch.tensor([torch.inf, 1.0])
    logits[1, 8999] = 2.0
    _, lse = entropy.softmax_cross_entropy_triton(logits, torch.tensor([0, 8999, 1]), -100, "none")

    assert torch.equal(logits.logsumexp(-1), lse)


def test_a_tuning_run_launches_what_it_forces(monkeypatch):
    first, second = choices.Launch((64,), 4, 1), choices.Launch((128,), 8, 2)
    monkeypatch.setattr(choices, "CANDIDATES", {})
    assert first == choices.launch_of("kernel", (first, second))
    monkeypatch.setitem(choices.FORCED, "kernel", second)

    assert second == choices.launch_of("kernel", (first, second))
    assert {"kernel": (first, second)} == choices.CANDIDATES
